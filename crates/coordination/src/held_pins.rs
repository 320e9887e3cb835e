//! Creates pins, and lists them for retention.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::backing::{Document, Edits};
use crate::coordinator::{Coordinator, DocumentUpdate};
use crate::error::{CoordinationError, build_entry_name};
use crate::pin::{self, Pin, PinRequest};

/// Snapshots that must not be deleted now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActivePins {
    /// Unexpired pins by name.
    pub pins: BTreeMap<String, Pin>,
}

impl ActivePins {
    /// Whether the object is pinned, by its complete key or by the snapshot name at the end of its key.
    pub fn covers(&self, key: &str) -> bool {
        self.pins.values().any(|pin| pin.covers(key))
    }

    /// The pinned keys of a listing.
    pub fn filter_pinned<'a>(
        &self,
        listing: impl IntoIterator<Item = &'a str>,
    ) -> BTreeSet<String> {
        listing
            .into_iter()
            .filter(|key| self.covers(key))
            .map(str::to_owned)
            .collect()
    }
}

/// A created pin. Dropping it acts like a crash: it stays until it expires. [`HeldPin::remove`] removes it
/// immediately.
#[derive(Debug)]
pub struct HeldPin {
    coordinator: Arc<Coordinator>,
    name: String,
    entry: String,
    holder: String,
    ttl: Duration,
}

impl Coordinator {
    /// Creates a pin. Select the chain *after* pinning it, or check again that it is complete: retention may
    /// have started to delete before.
    ///
    /// Replaces a pin with the same name and holder.
    pub async fn create_pin(
        self: &Arc<Self>,
        request: &PinRequest,
    ) -> Result<HeldPin, CoordinationError> {
        let entry = build_entry_name(pin::PREFIX, &request.name)?;
        let pin = request.to_pin(self.now());
        self.update(|page| {
            // Replacing another holder's pin would remove its protection.
            if let Some(found) = self.parse_entry::<Pin>(page, &entry)?
                && found.holder != request.holder
            {
                return Err(CoordinationError::PinTaken {
                    place: self.location(),
                    name: request.name.clone(),
                    holder: found.holder,
                });
            }
            Ok(DocumentUpdate::Write(self.build_edit(&entry, &pin)?, ()))
        })
        .await?;
        Ok(HeldPin {
            coordinator: Arc::clone(self),
            name: request.name.clone(),
            entry,
            holder: request.holder.clone(),
            ttl: pin.ttl,
        })
    }

    /// The unexpired pins. A pin expires after this value observed it unchanged for its TTL, so the first call
    /// returns all pins. An unreadable pin is an error: the caller must not delete anything then.
    pub async fn list_active_pins(&self) -> Result<ActivePins, CoordinationError> {
        let page = self.read_document().await?;
        let (pins, _) = self.split_expired_pins(&page)?;
        Ok(ActivePins { pins })
    }

    /// Removes expired pins, so that the document does not grow. Returns their names.
    pub async fn remove_expired_pins(&self) -> Result<Vec<String>, CoordinationError> {
        self.update(|page| {
            let (_, expired) = self.split_expired_pins(page)?;
            if expired.is_empty() {
                return Ok(DocumentUpdate::NoChange(expired));
            }
            let edits: Edits = expired
                .iter()
                .map(|name| (format!("{}{name}", pin::PREFIX), None))
                .collect();
            Ok(DocumentUpdate::Write(edits, expired))
        })
        .await
    }

    /// The unexpired pins and the names of the expired ones.
    fn split_expired_pins(
        &self,
        page: &Document,
    ) -> Result<(BTreeMap<String, Pin>, Vec<String>), CoordinationError> {
        let now = Instant::now();
        let (mut valid, mut expired) = (BTreeMap::new(), Vec::new());
        let mut tracker = self
            .pin_tracker
            .lock()
            .expect("pin tracker is never poisoned");
        for entry in page.entries.keys() {
            let Some(name) = entry.strip_prefix(pin::PREFIX) else {
                continue;
            };
            let Some(pin) = self.parse_entry::<Pin>(page, entry)? else {
                continue;
            };
            if tracker.observe(entry, &pin, pin.effective_ttl(), now) >= pin.effective_ttl() {
                expired.push(name.to_owned());
            } else {
                valid.insert(name.to_owned(), pin);
            }
        }
        tracker.retain(|entry| page.entries.contains_key(entry));
        Ok((valid, expired))
    }
}

impl HeldPin {
    /// The pin's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Renews the pin; fails if it expired and was removed.
    pub async fn renew(&self) -> Result<(), CoordinationError> {
        let this = &self.coordinator;
        this.update(|page| {
            let found = self
                .read_own_pin(page)?
                .ok_or_else(|| CoordinationError::PinLost {
                    place: this.location(),
                    name: self.name.clone(),
                })?;
            Ok(DocumentUpdate::Write(
                this.build_edit(&self.entry, &found.with_renewal(this.now()))?,
                (),
            ))
        })
        .await
    }

    /// Removes the pin.
    pub async fn remove(self) -> Result<(), CoordinationError> {
        let this = &self.coordinator;
        this.update(|page| match self.read_own_pin(page)? {
            Some(_) => Ok(DocumentUpdate::Write(
                Edits::from([(self.entry.clone(), None)]),
                (),
            )),
            None => Ok(DocumentUpdate::NoChange(())),
        })
        .await
    }

    /// Runs `work` and renews the pin meanwhile. Cancels `work` at an await point when the pin is lost. An
    /// unreachable document does not cancel it: reading is harmless, and deleted objects cause read errors.
    pub async fn run_while_pinned<W: Future>(
        &self,
        work: W,
    ) -> Result<W::Output, CoordinationError> {
        tokio::select! {
            biased;
            error = self.renew_until_lost() => Err(error),
            done = work => Ok(done),
        }
    }

    async fn renew_until_lost(&self) -> CoordinationError {
        let mut pause = self.ttl / 3;
        loop {
            sleep(pause).await;
            match self.renew().await {
                Ok(()) => pause = self.ttl / 3,
                // Retry faster: several attempts must fit into the remaining TTL.
                Err(error) if error.is_transient() => pause = self.ttl / 20,
                Err(error) => return error,
            }
        }
    }

    fn read_own_pin(&self, page: &Document) -> Result<Option<Pin>, CoordinationError> {
        let found: Option<Pin> = self.coordinator.parse_entry(page, &self.entry)?;
        Ok(found.filter(|pin| pin.holder == self.holder))
    }
}

//! Setting pins, and reading them for retention.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::backing::{Edits, Document};
use crate::coordinator::{DocumentUpdate, Coordinator};
use crate::error::{CoordinationError, build_entry_name};
use crate::pin::{self, Pin, PinRequest};

/// What must not be deleted now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActivePins {
    /// The valid pins by name.
    pub pins: BTreeMap<String, Pin>,
}

impl ActivePins {
    /// Whether an object is pinned, by its whole key or by the name its key ends in.
    pub fn covers(&self, key: &str) -> bool {
        self.pins.values().any(|pin| pin.covers(key))
    }

    /// Those of a listing that are pinned.
    pub fn filter_pinned<'a>(&self, listing: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
        listing
            .into_iter()
            .filter(|key| self.covers(key))
            .map(str::to_owned)
            .collect()
    }
}

/// A pin that is set. Dropping it is what a crash does: it stays until it expires; [`HeldPin::remove`] takes it away.
#[derive(Debug)]
pub struct HeldPin {
    coordinator: Arc<Coordinator>,
    name: String,
    entry: String,
    holder: String,
    ttl: Duration,
}

impl Coordinator {
    /// Pins what somebody is about to read. Choose the chain *after* it is pinned, or look again whether it is all there:
    /// retention may have been deleting since before.
    ///
    /// A pin of the same name and holder is replaced.
    pub async fn create_pin(self: &Arc<Self>, lock_request: &PinRequest) -> Result<HeldPin, CoordinationError> {
        let entry = build_entry_name(pin::PREFIX, &lock_request.name)?;
        let pin = lock_request.to_pin(self.now());
        self.update(|page| {
            if let Some(found) = self.parse_entry::<Pin>(page, &entry)?
                && found.holder != lock_request.holder
            {
                return Err(CoordinationError::PinTaken {
                    place: self.location(),
                    name: lock_request.name.clone(),
                    holder: found.holder,
                });
            }
            Ok(DocumentUpdate::Write(self.build_edit(&entry, &pin)?, ()))
        })
        .await?;
        Ok(HeldPin {
            coordinator: Arc::clone(self),
            name: lock_request.name.clone(),
            entry,
            holder: lock_request.holder.clone(),
            ttl: pin.ttl,
        })
    }

    /// The pins that are valid, as far as this value has observed. A pin is valid until it was seen unchanged for its time to
    /// live, so the first look finds all of them valid. A pin that cannot be read is an error: nothing may be deleted then.
    pub async fn list_active_pins(&self) -> Result<ActivePins, CoordinationError> {
        let page = self.read_document().await?;
        let (pins, _) = self.split_expired_pins(&page)?;
        Ok(ActivePins { pins })
    }

    /// Removes the pins that expired, so that the document does not grow. Tells their names.
    pub async fn remove_expired_pins(&self) -> Result<Vec<String>, CoordinationError> {
        self.update(|page| {
            let (_, void) = self.split_expired_pins(page)?;
            if void.is_empty() {
                return Ok(DocumentUpdate::NoChange(void));
            }
            let edits: Edits = void
                .iter()
                .map(|name| (format!("{}{name}", pin::PREFIX), None))
                .collect();
            Ok(DocumentUpdate::Write(edits, void))
        })
        .await
    }

    /// The valid pins, and the names of the void ones.
    fn split_expired_pins(
        &self,
        page: &Document,
    ) -> Result<(BTreeMap<String, Pin>, Vec<String>), CoordinationError> {
        let now = Instant::now();
        let (mut valid, mut void) = (BTreeMap::new(), Vec::new());
        let mut seen = self
            .pin_tracker
            .lock()
            .expect("nobody panics while noting pins");
        for entry in page.entries.keys() {
            let Some(name) = entry.strip_prefix(pin::PREFIX) else {
                continue;
            };
            let Some(pin) = self.parse_entry::<Pin>(page, entry)? else {
                continue;
            };
            if seen.observe(entry, &pin, pin.effective_ttl(), now) >= pin.effective_ttl() {
                void.push(name.to_owned());
            } else {
                valid.insert(name.to_owned(), pin);
            }
        }
        seen.retain(|entry| page.entries.contains_key(entry));
        Ok((valid, void))
    }
}

impl HeldPin {
    /// The pin's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Shows a sign of life.
    pub async fn renew(&self) -> Result<(), CoordinationError> {
        let this = &self.coordinator;
        this.update(|page| {
            let found = self.read_own_pin(page)?.ok_or_else(|| CoordinationError::PinLost {
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

    /// Takes the pin away.
    pub async fn remove(self) -> Result<(), CoordinationError> {
        let this = &self.coordinator;
        this.update(|page| match self.read_own_pin(page)? {
            Some(_) => Ok(DocumentUpdate::Write(Edits::from([(self.entry.clone(), None)]), ())),
            None => Ok(DocumentUpdate::NoChange(())),
        })
        .await
    }

    /// Does some work and renews the pin meanwhile. The work is dropped, at one of its awaits, when the pin is gone; an
    /// unreachable document alone does not stop it: reading on is harmless, and what is missing then is noticed.
    pub async fn run_while_pinned<W: Future>(&self, work: W) -> Result<W::Output, CoordinationError> {
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

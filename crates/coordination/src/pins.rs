//! Setting pins, and reading them for retention.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::backing::{Edits, Page};
use crate::coordinator::{Change, Coordinator};
use crate::error::{CoordinationError, entry_name};
use crate::pin::{self, Pin, PinWish};

/// What must not be deleted now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pinned {
    /// The valid pins by name.
    pub pins: BTreeMap<String, Pin>,
}

impl Pinned {
    /// Whether an object is pinned, by its whole key or by the name its key ends in.
    pub fn covers(&self, key: &str) -> bool {
        self.pins.values().any(|pin| pin.covers(key))
    }

    /// Those of a listing that are pinned.
    pub fn keys_of<'a>(&self, listing: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
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
    pub async fn pin(self: &Arc<Self>, wish: &PinWish) -> Result<HeldPin, CoordinationError> {
        let entry = entry_name(pin::PREFIX, &wish.name)?;
        let pin = wish.pin(self.now());
        self.update(|page| {
            if let Some(found) = self.entry::<Pin>(page, &entry)?
                && found.holder != wish.holder
            {
                return Err(CoordinationError::PinTaken {
                    place: self.place(),
                    name: wish.name.clone(),
                    holder: found.holder,
                });
            }
            Ok(Change::Write(self.edit(&entry, &pin)?, ()))
        })
        .await?;
        Ok(HeldPin {
            coordinator: Arc::clone(self),
            name: wish.name.clone(),
            entry,
            holder: wish.holder.clone(),
            ttl: pin.ttl,
        })
    }

    /// The pins that are valid, as far as this value has observed. A pin is valid until it was seen unchanged for its time to
    /// live, so the first look finds all of them valid. A pin that cannot be read is an error: nothing may be deleted then.
    pub async fn pinned(&self) -> Result<Pinned, CoordinationError> {
        let page = self.read().await?;
        let (pins, _) = self.judge_pins(&page)?;
        Ok(Pinned { pins })
    }

    /// Removes the pins that expired, so that the document does not grow. Tells their names.
    pub async fn sweep_pins(&self) -> Result<Vec<String>, CoordinationError> {
        self.update(|page| {
            let (_, void) = self.judge_pins(page)?;
            if void.is_empty() {
                return Ok(Change::Nothing(void));
            }
            let edits: Edits = void
                .iter()
                .map(|name| (format!("{}{name}", pin::PREFIX), None))
                .collect();
            Ok(Change::Write(edits, void))
        })
        .await
    }

    /// The valid pins, and the names of the void ones.
    fn judge_pins(
        &self,
        page: &Page,
    ) -> Result<(BTreeMap<String, Pin>, Vec<String>), CoordinationError> {
        let now = Instant::now();
        let (mut valid, mut void) = (BTreeMap::new(), Vec::new());
        let mut seen = self
            .seen_pins
            .lock()
            .expect("nobody panics while noting pins");
        for entry in page.entries.keys() {
            let Some(name) = entry.strip_prefix(pin::PREFIX) else {
                continue;
            };
            let Some(pin) = self.entry::<Pin>(page, entry)? else {
                continue;
            };
            if seen.unchanged(entry, &pin, pin.lasts(), now) >= pin.lasts() {
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
            let found = self.own(page)?.ok_or_else(|| CoordinationError::PinLost {
                place: this.place(),
                name: self.name.clone(),
            })?;
            Ok(Change::Write(
                this.edit(&self.entry, &found.renewed(this.now()))?,
                (),
            ))
        })
        .await
    }

    /// Takes the pin away.
    pub async fn remove(self) -> Result<(), CoordinationError> {
        let this = &self.coordinator;
        this.update(|page| match self.own(page)? {
            Some(_) => Ok(Change::Write(Edits::from([(self.entry.clone(), None)]), ())),
            None => Ok(Change::Nothing(())),
        })
        .await
    }

    /// Does some work and renews the pin meanwhile. The work is dropped, at one of its awaits, when the pin is gone; an
    /// unreachable document alone does not stop it: reading on is harmless, and what is missing then is noticed.
    pub async fn keep<W: Future>(&self, work: W) -> Result<W::Output, CoordinationError> {
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

    fn own(&self, page: &Page) -> Result<Option<Pin>, CoordinationError> {
        let found: Option<Pin> = self.coordinator.entry(page, &self.entry)?;
        Ok(found.filter(|pin| pin.holder == self.holder))
    }
}

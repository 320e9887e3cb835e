//! A backup in a store: lists its snapshots and opens its objects.

use std::fmt::Write as _;
use std::io::{self, Read};
use std::sync::Arc;

use mainstay_archive::catalogue::{Catalogue, SnapshotObject};
use mainstay_archive::name::SnapshotKind;
use mainstay_backup::{ObjectSource, list_snapshots};
use mainstay_store::{Environment, SnapStore, StorageProvider, StoreArgs, StoreConfig, StoreError};
use tokio::runtime::Handle;

use crate::failure::CommandFailure;
use crate::rebuild::{Meter, MeteredRead};

/// Bytes of a full snapshot that are downloaded ahead of the reader.
const BASE_BUDGET_BYTES: u64 = 8 << 20;
/// Bytes of one delta that are downloaded ahead of the reader; several deltas are open at once.
const DELTA_BUDGET_BYTES: u64 = 4 << 20;

/// A store and the snapshots found under its prefix.
#[derive(Clone)]
pub struct Backup {
    pub(crate) store: SnapStore,
    pub catalogue: Catalogue,
}

impl Backup {
    /// Opens the store and lists its snapshots.
    pub async fn open(
        config: &StoreConfig,
        environment: &Environment,
    ) -> Result<Self, CommandFailure> {
        let store = SnapStore::open(config, environment)?;
        let catalogue = list_snapshots(&store).await?;
        Ok(Self { store, catalogue })
    }

    /// Returns a source of objects for blocking threads. Must be called inside the tokio runtime.
    pub(crate) fn sources(&self, meter: &Arc<Meter>) -> StoreObjectSource {
        StoreObjectSource {
            store: self.store.clone(),
            runtime: Handle::current(),
            meter: Arc::clone(meter),
        }
    }
}

/// Returns the newest revision according to the names of the snapshots.
pub(crate) fn newest_revision(catalogue: &Catalogue) -> Option<i64> {
    let objects = catalogue.fulls.iter().chain(&catalogue.deltas);
    objects.map(|object| object.name.last.0).max()
}

/// Returns provider, container and prefix of a store, as shown to users.
pub(crate) fn describe_location(store: &SnapStore) -> String {
    let mut place = format!("{} {}", store.provider(), store.container());
    if !store.prefix().is_empty() {
        let _ = write!(place, "/{}", store.prefix());
    }
    place
}

/// Returns the configuration of the store, or `None` if no store is named.
///
/// Every flag of the store has a default, so a provider, container or prefix that was given decides.
pub(crate) fn to_store_config(store: StoreArgs) -> Result<Option<StoreConfig>, CommandFailure> {
    let is_named = store.provider != StorageProvider::Local
        || store
            .container
            .as_ref()
            .is_some_and(|name| !name.is_empty())
        || !store.prefix.is_empty();
    Ok(if is_named {
        Some(store.into_config()?)
    } else {
        None
    })
}

/// Opens objects of a store from blocking threads and counts the bytes read.
#[derive(Clone)]
pub(crate) struct StoreObjectSource {
    store: SnapStore,
    runtime: Handle,
    meter: Arc<Meter>,
}

impl ObjectSource for StoreObjectSource {
    fn open(&self, object: &SnapshotObject) -> io::Result<Box<dyn Read + Send>> {
        let budget = match object.name.kind {
            SnapshotKind::Full => BASE_BUDGET_BYTES,
            SnapshotKind::Delta => DELTA_BUDGET_BYTES,
        };
        let download = self
            .store
            .download_with_budget(&object.key, Some(object.size), budget);
        let download = self
            .runtime
            .block_on(download)
            .map_err(StoreError::into_io_error)?;
        Ok(Box::new(MeteredRead::new(
            download.into_reader(),
            Arc::clone(&self.meter),
        )))
    }
}

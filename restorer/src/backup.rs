//! A backup in a store: what it holds, and how its objects are opened.

use std::io::{self, Read};
use std::sync::Arc;

use mainstay_archive::catalogue::{Catalogue, Listed, Object};
use mainstay_archive::layout::list_prefixes;
use mainstay_archive::name::Kind;
use mainstay_store::{Environment, SnapStore, StoreConfig, StoreError};
use tokio::runtime::Handle;

use crate::failure::Failure;
use crate::rebuild::{Meter, MeteredRead, Sources};

/// Bytes of a full snapshot on their way at once.
const BASE_BUDGET_BYTES: u64 = 8 << 20;
/// Bytes of a delta on their way at once; several are read ahead.
const DELTA_BUDGET_BYTES: u64 = 4 << 20;

/// A store with the snapshots found under its prefix.
#[derive(Clone)]
pub struct Backup {
    /// The store.
    pub store: SnapStore,
    /// What it holds.
    pub catalogue: Catalogue,
}

impl Backup {
    /// Opens the store and lists it.
    pub async fn open(config: &StoreConfig, environment: &Environment) -> Result<Self, Failure> {
        let store = SnapStore::open(config, environment)?;
        let catalogue = list(&store).await?;
        Ok(Self { store, catalogue })
    }

    /// Opens objects for threads that may block; must be called inside the runtime.
    pub fn sources(&self, meter: &Arc<Meter>) -> StoreSources {
        StoreSources {
            store: self.store.clone(),
            runtime: Handle::current(),
            meter: Arc::clone(meter),
        }
    }
}

/// Everything under the prefix of the store, in both layouts.
pub async fn list(store: &SnapStore) -> Result<Catalogue, StoreError> {
    let mut listed = Vec::new();
    for folder in list_prefixes(store.prefix()) {
        let objects = store.list(&folder).await?;
        listed.extend(objects.into_iter().map(|object| Listed {
            key: object.key,
            size: object.size,
            modified: object.modified,
        }));
    }
    Ok(Catalogue::from_listing(store.prefix(), listed))
}

/// Opens objects of a store from blocking threads and counts what is read.
#[derive(Clone)]
pub struct StoreSources {
    store: SnapStore,
    runtime: Handle,
    meter: Arc<Meter>,
}

impl Sources for StoreSources {
    fn open(&self, object: &Object) -> io::Result<Box<dyn Read + Send>> {
        let budget = match object.name.kind {
            Kind::Full => BASE_BUDGET_BYTES,
            Kind::Delta => DELTA_BUDGET_BYTES,
        };
        let download = self
            .store
            .download_within(&object.key, Some(object.size), budget);
        let download = self
            .runtime
            .block_on(download)
            .map_err(StoreError::into_io)?;
        Ok(Box::new(MeteredRead::new(
            download.into_reader(),
            Arc::clone(&self.meter),
        )))
    }
}

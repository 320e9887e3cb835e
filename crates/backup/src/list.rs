//! The listing of a store as a catalogue.

use mainstay_archive::catalogue::{Catalogue, ListedObject};
use mainstay_archive::layout::list_prefixes;
use mainstay_store::{SnapStore, StoreError};

/// Lists everything under the prefix of the store, in both directory layouts of etcd-backup-restore.
///
/// # Errors
/// A folder cannot be listed: a store that is unreachable is not an empty store.
pub async fn list_snapshots(store: &SnapStore) -> Result<Catalogue, StoreError> {
    let mut listed = Vec::new();
    for folder in list_prefixes(store.prefix()) {
        let objects = store.list(&folder).await?;
        listed.extend(objects.into_iter().map(|object| ListedObject {
            key: object.key,
            size: object.size,
            modified: object.last_modified,
        }));
    }
    Ok(Catalogue::from_listing(store.prefix(), listed))
}

//! Writes the history as an etcd database file: the way from an engine to a real etcd.

use std::fs::File;
use std::path::Path;

use mainstay_bbolt::{BboltError, DEFAULT_PAGE_SIZE, Disk, Update};
use mainstay_mvcc::{RevisionKey, schema};

use crate::row::Row;
use crate::row_store::{StorageError, StoredState};

/// Buckets that etcd expects, although an engine has nothing for them.
const EMPTY_BUCKETS: [&[u8]; 7] = [
    schema::ALARM,
    schema::AUTH,
    schema::AUTH_ROLES,
    schema::AUTH_USERS,
    schema::CLUSTER,
    schema::MEMBERS,
    schema::MEMBERS_REMOVED,
];

/// Writes an etcd database with the given rows, which must come in order.
pub(crate) fn write_database(
    file: &Path,
    state: &StoredState,
    rows: impl FnOnce(&mut dyn FnMut(Row) -> Result<(), BboltError>) -> Result<(), StorageError>,
) -> Result<(), StorageError> {
    let failed = |source: BboltError| StorageError::new("write the database file", source);
    let disk = File::options()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(file)
        .map_err(|source| StorageError::new("create the database file", source))?;
    let mut update = Update::create(&disk, DEFAULT_PAGE_SIZE).map_err(failed)?;
    write_rows(&mut update, rows)?;
    write_state(&mut update, state).map_err(failed)?;
    for name in EMPTY_BUCKETS {
        update.rewrite_bucket(name).finish().map_err(failed)?;
    }
    update.commit().map_err(failed)?;
    Ok(())
}

fn write_rows<D: Disk>(
    update: &mut Update<D>,
    rows: impl FnOnce(&mut dyn FnMut(Row) -> Result<(), BboltError>) -> Result<(), StorageError>,
) -> Result<(), StorageError> {
    let mut bucket = update.rewrite_bucket(schema::KEY);
    let mut value = Vec::new();
    rows(&mut |row| {
        value.clear();
        row.encode_value(&mut value);
        row.bucket_key().with_encoded(|key| bucket.add(key, &value))
    })?;
    bucket
        .finish()
        .map_err(|source| StorageError::new("write the database file", source))
}

fn write_state<D: Disk>(update: &mut Update<D>, state: &StoredState) -> Result<(), BboltError> {
    let mut leases = update.rewrite_bucket(schema::LEASE);
    let mut sorted = state.leases.clone();
    sorted.sort_unstable();
    for (id, ttl_seconds) in sorted {
        let lease = schema::Lease {
            id,
            ttl_seconds,
            remaining_seconds: 0,
        };
        let (key, value) = lease.encode();
        leases.add(&key, &value)?;
    }
    leases.finish()?;
    let mut meta = update.rewrite_bucket(schema::META);
    meta.add(schema::CONSISTENT_INDEX, &1u64.to_be_bytes())?;
    if let Some(compacted) = state.compacted {
        let position = RevisionKey::first_of(compacted).encode();
        meta.add(schema::FINISHED_COMPACT, &position)?;
        meta.add(schema::SCHEDULED_COMPACT, &position)?;
    }
    meta.add(schema::TERM, &1u64.to_be_bytes())?;
    meta.finish()
}

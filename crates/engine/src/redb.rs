//! Engine `redb`: rows in one database file, on one node.
//!
//! Every commit is synced before a write is acknowledged or visible; writes that arrive during a sync share the next
//! one. redb's commits are atomic, so after a crash the file has all rows of a commit or none. The newest revision is
//! stored with its rows: a revision that was visible is never used again.
//!
//! Layout: `rows` (revision, number in the transaction) → kind and `mvccpb.KeyValue`; `meta` name → revision; `leases`
//! ID → TTL in seconds.

use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use ::redb::{
    Database, ReadOnlyTable, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction,
};
use mainstay_ids::{LeaseId, Revision};
use mainstay_mvcc::RevisionKey;

use crate::engine::Capabilities;
use crate::error::EngineError;
use crate::mvcc::{Mvcc, MvccOptions};
use crate::row::{Position, Row};
use crate::row_store::{Batch, RowReader, RowStore, StorageError, StoredState};

type RowKey = (u64, u64);

const ROWS: TableDefinition<'_, RowKey, &[u8]> = TableDefinition::new("rows");
const META: TableDefinition<'_, &str, i64> = TableDefinition::new("meta");
const LEASES: TableDefinition<'_, u64, i64> = TableDefinition::new("leases");

const REVISION: &str = "revision";
const COMPACTED: &str = "compacted";

/// First byte of a row.
const PUT: u8 = 0;
const DELETE: u8 = 1;

/// The file below a data directory.
const FILE: &str = "mainstay.redb";

/// Rows in a redb database.
#[derive(Debug)]
pub struct RedbRows {
    /// Locked for writing only to defragment, which needs the file for itself.
    database: RwLock<Database>,
    path: PathBuf,
}

/// Opens, or creates, the database below a directory.
pub fn redb_engine(data_dir: &Path, quota_bytes: Option<u64>) -> Result<Mvcc, EngineError> {
    let rows = RedbRows::open(data_dir).map_err(EngineError::Storage)?;
    let options = MvccOptions {
        quota_bytes,
        capabilities: Capabilities {
            is_durable: true,
            ..MvccOptions::new("redb").capabilities
        },
    };
    Mvcc::open(Box::new(rows), options)
}

impl RedbRows {
    /// Opens, or creates, the database below a directory. Only one process can have it open.
    pub fn open(data_dir: &Path) -> Result<Self, StorageError> {
        let failed = |source: io::Error| StorageError::new("create the data directory", source);
        fs::create_dir_all(data_dir).map_err(failed)?;
        let path = data_dir.join(FILE);
        let database = Database::create(&path)
            .map_err(|source| StorageError::new("open the database", source))?;
        create_tables(&database)
            .map_err(|source| StorageError::new("create the tables", source))?;
        // The file's name must survive a crash as well.
        fs::File::open(data_dir)
            .and_then(|directory| directory.sync_all())
            .map_err(failed)?;
        Ok(Self {
            database: RwLock::new(database),
            path,
        })
    }

    fn database(&self) -> RwLockReadGuard<'_, Database> {
        self.database.read().unwrap_or_else(PoisonError::into_inner)
    }
}

fn create_tables(database: &Database) -> Result<(), ::redb::Error> {
    let write = database.begin_write()?;
    write.open_table(ROWS)?;
    write.open_table(META)?;
    write.open_table(LEASES)?;
    write.commit()?;
    Ok(())
}

fn row_key(at: Position) -> RowKey {
    // Revisions are not negative, so their order as unsigned numbers is the same.
    (at.main.0.unsigned_abs(), at.sub.unsigned_abs())
}

fn encode(row: &Row) -> Vec<u8> {
    let mut value = vec![if row.is_delete() { DELETE } else { PUT }];
    row.encode_value(&mut value);
    value
}

fn decode((main, sub): RowKey, value: &[u8]) -> Result<Row, StorageError> {
    let invalid = |why: &str| StorageError::new("decode a row", format!("{why}, revision {main}"));
    let (kind, value) = value.split_first().ok_or_else(|| invalid("it is empty"))?;
    let key = RevisionKey {
        main: Revision(i64::try_from(main).map_err(|_| invalid("invalid revision"))?),
        sub: i64::try_from(sub).map_err(|_| invalid("invalid revision"))?,
        is_tombstone: *kind == DELETE,
    };
    Row::decode(key, value).map_err(|source| StorageError::new("decode a row", source))
}

fn apply(batch: &Batch, write: &WriteTransaction) -> Result<(), ::redb::Error> {
    {
        let mut rows = write.open_table(ROWS)?;
        for row in &batch.rows {
            rows.insert(row_key(row.at), encode(row).as_slice())?;
        }
        for at in &batch.deleted {
            rows.remove(row_key(*at))?;
        }
        let mut leases = write.open_table(LEASES)?;
        for (id, ttl) in &batch.granted {
            leases.insert(id.0, ttl)?;
        }
        for id in &batch.revoked {
            leases.remove(id.0)?;
        }
        let mut meta = write.open_table(META)?;
        if let Some(newest) = batch.rows.last() {
            meta.insert(REVISION, newest.at.main.0)?;
        }
        if let Some(compacted) = batch.compacted {
            meta.insert(COMPACTED, compacted.0)?;
        }
    }
    Ok(())
}

fn read_state(database: &Database) -> Result<StoredState, ::redb::Error> {
    let read = database.begin_read()?;
    let meta = read.open_table(META)?;
    let revision =
        |name: &str| Ok::<_, ::redb::Error>(meta.get(name)?.map(|at| Revision(at.value())));
    let mut leases = Vec::new();
    for lease in read.open_table(LEASES)?.iter()? {
        let (id, ttl) = lease?;
        leases.push((LeaseId(id.value()), ttl.value()));
    }
    Ok(StoredState {
        revision: revision(REVISION)?,
        compacted: revision(COMPACTED)?,
        leases,
    })
}

impl RowStore for RedbRows {
    fn stored_state(&self) -> Result<StoredState, StorageError> {
        read_state(&self.database()).map_err(|source| StorageError::new("read the state", source))
    }

    fn reader(&self) -> Result<Box<dyn RowReader + '_>, StorageError> {
        let database = self.database();
        let open = || -> Result<_, ::redb::Error> { Ok(database.begin_read()?.open_table(ROWS)?) };
        let rows = open().map_err(|source| StorageError::new("begin to read", source))?;
        Ok(Box::new(RedbReader {
            rows,
            _database: database,
        }))
    }

    fn commit(&self, batch: &Batch) -> Result<(), StorageError> {
        let database = self.database();
        let commit = || -> Result<(), ::redb::Error> {
            let write = database.begin_write()?;
            apply(batch, &write)?;
            write.commit()?; // returns after fsync: the default durability
            Ok(())
        };
        commit().map_err(|source| StorageError::new("commit", source))
    }

    fn allocated_bytes(&self) -> Result<Option<u64>, StorageError> {
        let size = fs::metadata(&self.path).map(|file| file.len());
        size.map(Some)
            .map_err(|source| StorageError::new("read the size of the file", source))
    }

    fn defragment(&self) -> Result<(), StorageError> {
        let mut database = self
            .database
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let compacted = database.compact();
        compacted
            .map(|_| ())
            .map_err(|source| StorageError::new("defragment", source))
    }

    fn is_blocking(&self) -> bool {
        true
    }
}

struct RedbReader<'d> {
    rows: ReadOnlyTable<RowKey, &'static [u8]>,
    /// Dropped after the table: a defragmentation starts when no reader is left.
    _database: RwLockReadGuard<'d, Database>,
}

impl RowReader for RedbReader<'_> {
    fn row(&self, at: Position) -> Result<Option<Row>, StorageError> {
        let key = row_key(at);
        let found = self
            .rows
            .get(key)
            .map_err(|source| StorageError::new("read a row", source))?;
        found.map(|value| decode(key, value.value())).transpose()
    }

    fn scan(
        &self,
        from: Position,
        visit: &mut dyn FnMut(Row) -> ControlFlow<()>,
    ) -> Result<(), StorageError> {
        let failed = |source: ::redb::StorageError| StorageError::new("scan the rows", source);
        for item in self.rows.range(row_key(from)..).map_err(failed)? {
            let (key, value) = item.map_err(failed)?;
            if visit(decode(key.value(), value.value())?).is_break() {
                break;
            }
        }
        Ok(())
    }
}

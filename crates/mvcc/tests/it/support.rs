//! Small databases made of documented rows.

use std::io;
use std::sync::Mutex;

use mainstay_bbolt::{Database, Disk, ReadAt, Update};
use mainstay_ids::{LeaseId, Revision};
use mainstay_mvcc::{
    DatabaseStatus, HistoryChecker, HistorySummary, KeyValue, RevisionKey, RowFault, schema,
};

/// A file in memory.
#[derive(Debug, Default)]
pub(crate) struct MemoryDisk(Mutex<Vec<u8>>);

impl MemoryDisk {
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

impl ReadAt for MemoryDisk {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.lock().unwrap().as_slice().read_exact_at(buf, offset)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().len() as u64)
    }
}

impl Disk for MemoryDisk {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut file = self.0.lock().unwrap();
        let start = usize::try_from(offset).unwrap();
        let end = start + bytes.len();
        if file.len() < end {
            file.resize(end, 0);
        }
        file[start..end].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.0
            .lock()
            .unwrap()
            .resize(usize::try_from(size).unwrap(), 0);
        Ok(())
    }
}

/// One row of the key bucket.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) key: RevisionKey,
    pub(crate) value: Vec<u8>,
}

pub(crate) struct PutRow<'a> {
    pub(crate) at: (i64, i64),
    pub(crate) key: &'a str,
    pub(crate) value: &'a str,
    pub(crate) created: i64,
    pub(crate) version: i64,
    pub(crate) lease: u64,
}

impl PutRow<'_> {
    pub(crate) fn to_row(&self) -> Row {
        let (main, sub) = self.at;
        let kv = KeyValue {
            key: self.key.as_bytes(),
            create_revision: Revision(self.created),
            mod_revision: Revision(main),
            version: self.version,
            value: self.value.as_bytes(),
            lease: LeaseId(self.lease),
        };
        let mut value = Vec::new();
        kv.encode(&mut value);
        Row {
            key: RevisionKey {
                main: Revision(main),
                sub,
                is_tombstone: false,
            },
            value,
        }
    }
}

/// A put of a key's first version.
pub(crate) fn put(at: (i64, i64), key: &str, value: &str) -> Row {
    PutRow {
        at,
        key,
        value,
        created: at.0,
        version: 1,
        lease: 0,
    }
    .to_row()
}

pub(crate) fn delete(at: (i64, i64), key: &str) -> Row {
    let kv = KeyValue {
        key: key.as_bytes(),
        ..KeyValue::default()
    };
    let mut value = Vec::new();
    kv.encode(&mut value);
    let key = RevisionKey {
        main: Revision(at.0),
        sub: at.1,
        is_tombstone: true,
    };
    Row { key, value }
}

/// A database of these rows, with the given compaction positions.
pub(crate) fn build_database(
    rows: &[Row],
    scheduled: Option<i64>,
    finished: Option<i64>,
) -> Database<Vec<u8>> {
    let disk = MemoryDisk::default();
    let mut update = Update::create(&disk, 4096).unwrap();
    let mut bucket = update.rewrite_bucket(schema::KEY);
    for row in rows {
        bucket.add(&row.key.encode(), &row.value).unwrap();
    }
    bucket.finish().unwrap();
    let mut meta = update.rewrite_bucket(schema::META);
    meta.add(schema::CONSISTENT_INDEX, &1u64.to_be_bytes())
        .unwrap();
    let position = |main: i64| RevisionKey::first_of(Revision(main)).encode();
    if let Some(main) = finished {
        meta.add(schema::FINISHED_COMPACT, &position(main)).unwrap();
    }
    if let Some(main) = scheduled {
        meta.add(schema::SCHEDULED_COMPACT, &position(main))
            .unwrap();
    }
    meta.add(schema::TERM, &1u64.to_be_bytes()).unwrap();
    meta.finish().unwrap();
    update.commit().unwrap();
    Database::open(disk.into_bytes()).unwrap()
}

/// Checks the history of a database.
pub(crate) fn check_history(database: &Database<Vec<u8>>) -> Result<HistorySummary, RowFault> {
    let mut history = HistoryChecker::new(&DatabaseStatus::read(database).unwrap());
    let root = database.bucket(schema::KEY).unwrap().unwrap();
    let mut cursor = database.scan(&root).unwrap();
    while let Some(item) = cursor.next().unwrap() {
        history.check_row(item.key, item.value)?;
    }
    history.finish(|_| false)
}

/// Keys of the key bucket, readable.
pub(crate) fn row_names(database: &Database<Vec<u8>>) -> Vec<String> {
    let root = database.bucket(schema::KEY).unwrap().unwrap();
    let mut cursor = database.scan(&root).unwrap();
    let mut names = Vec::new();
    while let Some(item) = cursor.next().unwrap() {
        let key = RevisionKey::decode(item.key).unwrap();
        let mark = if key.is_tombstone { "t" } else { "" };
        names.push(format!("{}.{}{mark}", key.main, key.sub));
    }
    names
}

/// The first documented data set.
pub(crate) fn data_set_1() -> Vec<Row> {
    vec![
        put((2, 0), "a", "1"),
        put((3, 0), "b", "2"),
        PutRow {
            at: (4, 0),
            key: "a",
            value: "3",
            created: 2,
            version: 2,
            lease: 0,
        }
        .to_row(),
        delete((5, 0), "b"),
        put((6, 0), "b", "4"),
        put((7, 0), "x", "1"),
        put((7, 1), "y", "2"),
        delete((7, 2), "a"),
        PutRow {
            at: (8, 0),
            key: "leased",
            value: "v",
            created: 8,
            version: 1,
            lease: 2_072_959_720_677_687_053,
        }
        .to_row(),
    ]
}

/// The second documented data set: tombstones at the compaction revision.
pub(crate) fn data_set_2() -> Vec<Row> {
    vec![
        put((2, 0), "a", "x"),
        put((3, 0), "b", "y"),
        delete((4, 0), "a"),
        put((5, 0), "c", "z"),
        delete((6, 0), "b"),
        delete((7, 0), "c"),
    ]
}

//! A disk in memory that records all operations, and the model that files are compared with.

use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;

use mainstay_bbolt::{BboltError, BucketRoot, Database, Disk, OwnedItem, ReadAt, Update, check};

pub(crate) type BucketModel = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Clone, Debug)]
pub(crate) enum DiskOp {
    Write(u64, Vec<u8>),
    SetSize(u64),
    Sync,
}

/// A file in memory with a log of every change.
#[derive(Debug, Default)]
pub(crate) struct LoggedDisk {
    bytes: Mutex<Vec<u8>>,
    log: Mutex<Vec<DiskOp>>,
}

impl LoggedDisk {
    pub(crate) fn from_bytes(bytes: Vec<u8>) -> Self {
        Self {
            bytes: Mutex::new(bytes),
            log: Mutex::default(),
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.bytes.lock().unwrap().clone()
    }

    pub(crate) fn take_log(&self) -> Vec<DiskOp> {
        std::mem::take(&mut self.log.lock().unwrap())
    }
}

pub(crate) fn apply_op(bytes: &mut Vec<u8>, op: &DiskOp) {
    match op {
        DiskOp::Write(offset, data) => {
            let start = usize::try_from(*offset).unwrap();
            let end = start + data.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[start..end].copy_from_slice(data);
        }
        DiskOp::SetSize(size) => bytes.resize(usize::try_from(*size).unwrap(), 0),
        DiskOp::Sync => {}
    }
}

impl ReadAt for LoggedDisk {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.bytes
            .lock()
            .unwrap()
            .as_slice()
            .read_exact_at(buf, offset)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.bytes.lock().unwrap().len() as u64)
    }
}

impl Disk for LoggedDisk {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let op = DiskOp::Write(offset, bytes.to_vec());
        apply_op(&mut self.bytes.lock().unwrap(), &op);
        self.log.lock().unwrap().push(op);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.log.lock().unwrap().push(DiskOp::Sync);
        Ok(())
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        apply_op(&mut self.bytes.lock().unwrap(), &DiskOp::SetSize(size));
        self.log.lock().unwrap().push(DiskOp::SetSize(size));
        Ok(())
    }
}

/// A new file with the given buckets.
pub(crate) fn build_file(page_size: u32, buckets: &[(&str, &BucketModel)]) -> Vec<u8> {
    let disk = LoggedDisk::default();
    let mut update = Update::create(&disk, page_size).unwrap();
    for (name, items) in buckets {
        let mut bucket = update.rewrite_bucket(name.as_bytes());
        for (key, value) in *items {
            bucket.add(key, value).unwrap();
        }
        bucket.finish().unwrap();
    }
    update.commit().unwrap();
    disk.bytes()
}

/// The content of one bucket, read in both directions, after a full check of the file.
pub(crate) fn read_bucket(bytes: &[u8], name: &str) -> Result<BucketModel, BboltError> {
    let database = Database::open(bytes)?;
    let mut seen = BucketModel::new();
    check(&database, |bucket, item| {
        if bucket == name.as_bytes() {
            seen.insert(item.key.to_vec(), item.value.to_vec());
        }
        Ok::<_, BboltError>(())
    })?;
    let root = database
        .bucket(name.as_bytes())?
        .unwrap_or(BucketRoot::Inline(vec![
            0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0,
        ]));
    let forward = collect_items(database.scan(&root)?)?;
    let mut backward = collect_items(database.scan_back(&root)?)?;
    backward.reverse();
    assert_eq!(forward, backward);
    assert!(
        forward.iter().eq(seen
            .iter()
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect::<Vec<_>>()
            .iter())
    );
    Ok(seen)
}

fn collect_items<S: ReadAt>(
    mut cursor: mainstay_bbolt::Cursor<'_, S>,
) -> Result<Vec<OwnedItem>, BboltError> {
    let mut items = Vec::new();
    while let Some(item) = cursor.next()? {
        items.push((item.key.to_vec(), item.value.to_vec()));
    }
    Ok(items)
}

/// Keys like revisions: ascending numbers; values of the given lengths.
pub(crate) fn rows(first: u64, lengths: &[usize]) -> BucketModel {
    lengths
        .iter()
        .zip(first..)
        .map(|(len, number)| {
            let fill = u8::try_from(number % 251).unwrap();
            (number.to_be_bytes().to_vec(), vec![fill; *len])
        })
        .collect()
}

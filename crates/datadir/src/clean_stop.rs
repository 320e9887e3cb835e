//! The clean-stop record: after an orderly stop, the next start skips the full verification.
//!
//! ```text
//! etcd exits → CleanStop::observe → write ─── <data dir>.clean-stop ───► take (removes it) → is_valid_for
//! ```
//!
//! **Invariants**: a record is valid for one start, because reading removes it. It is valid only while the
//! database and the end of the WAL are unchanged. **After a crash** there is no valid record, which leads to a
//! full verification.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use mainstay_bbolt::{BboltError as PageError, Database};
use mainstay_wal::{DecodeError, Decoder, ListError, Log, NextRecord, SegmentRole};
use serde::{Deserialize, Serialize};

use crate::durable_fs;
use crate::lock::{self, LockError};

/// Maximum size of the record file; a record has a few hundred bytes.
const MAX_RECORD_BYTES: u64 = 64 << 10;

/// State of a data directory after etcd exited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CleanStop {
    /// Newest write transaction of the database.
    pub db_txid: u64,
    /// Size of the database file in bytes.
    pub db_size: u64,
    /// End of the WAL.
    pub wal_last: WalEnd,
    /// Name of the program that wrote the record.
    pub written_by: String,
}

/// End of a WAL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WalEnd {
    /// File name of the last segment.
    pub segment: String,
    /// Size of the file in bytes, including preallocated zeros.
    pub length: u64,
    /// Offset behind the last record, in bytes.
    pub end: u64,
    /// Rolling CRC at that offset.
    pub crc: u32,
}

/// Observing the directory, or writing or reading the record, failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CleanStopError {
    /// etcd is still running.
    #[error("database {} is in use", db.display())]
    InUse {
        /// The database file.
        db: PathBuf,
    },
    /// The database lock cannot be checked.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The database cannot be opened.
    #[error("open database {}", db.display())]
    OpenDatabase {
        /// The database file.
        db: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The database file is not a valid bbolt database.
    #[error("read database {}", db.display())]
    Database {
        /// The database file.
        db: PathBuf,
        /// The database error.
        source: PageError,
    },
    /// The WAL is missing or cannot be listed.
    #[error(transparent)]
    List(#[from] ListError),
    /// The last segment cannot be opened.
    #[error("open WAL segment {}", segment.display())]
    OpenSegment {
        /// The segment file.
        segment: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The last segment is damaged.
    #[error("read the last WAL segment")]
    Segment {
        /// The decoder's error.
        source: DecodeError,
    },
    /// The WAL ends with a torn record, which an orderly stop never leaves.
    #[error("WAL segment {} ends with a torn record", segment.display())]
    Torn {
        /// The segment file.
        segment: PathBuf,
    },
    /// The record cannot be written.
    #[error("write clean-stop record {}", file.display())]
    Write {
        /// The record file.
        file: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The record cannot be read or removed.
    #[error("read and remove clean-stop record {}", file.display())]
    Take {
        /// The record file.
        file: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

impl CleanStop {
    /// Reads the state of a directory after an orderly stop of etcd.
    pub fn observe(data_dir: &Path, written_by: &str) -> Result<Self, CleanStopError> {
        let member = data_dir.join("member");
        let db = member.join("snap/db");
        // While etcd runs, the state still changes.
        if lock::is_in_use(&db)? {
            return Err(CleanStopError::InUse { db });
        }
        let (db_txid, db_size) = read_database_meta(db)?;
        Ok(Self {
            db_txid,
            db_size,
            wal_last: read_wal_end(&member.join("wal"))?,
            written_by: written_by.to_owned(),
        })
    }

    /// Writes the record beside `data_dir`.
    pub fn write(&self, data_dir: &Path) -> Result<(), CleanStopError> {
        let file = record_path(data_dir);
        let json = serde_json::to_vec(self).map_err(io::Error::from);
        json.and_then(|json| durable_fs::replace_file(&file, &json))
            .map_err(|source| CleanStopError::Write { file, source })
    }

    /// Reads and removes the record beside `data_dir`. `None` if there is none or it cannot be parsed.
    pub fn take(data_dir: &Path) -> Result<Option<Self>, CleanStopError> {
        let file = record_path(data_dir);
        let taken = durable_fs::read_small_file(&file, MAX_RECORD_BYTES).and_then(|bytes| {
            let Some(bytes) = bytes else { return Ok(None) };
            // Remove before use: a record that survives would be trusted again after a crash of etcd.
            fs::remove_file(&file)?;
            durable_fs::sync_dir(durable_fs::parent_dir(&file))?;
            Ok(serde_json::from_slice(&bytes).ok())
        });
        taken.map_err(|source| CleanStopError::Take { file, source })
    }

    /// Whether the directory still matches the record; `false` if it cannot be read.
    pub fn is_valid_for(&self, data_dir: &Path) -> bool {
        Self::observe(data_dir, &self.written_by).is_ok_and(|now| now == *self)
    }
}

/// `<data dir>.clean-stop`.
fn record_path(data_dir: &Path) -> PathBuf {
    let mut name = data_dir.components().as_path().as_os_str().to_owned();
    name.push(".clean-stop");
    PathBuf::from(name)
}

fn read_database_meta(db: PathBuf) -> Result<(u64, u64), CleanStopError> {
    let opened = File::open(&db).and_then(|file| Ok((file.metadata()?.len(), file)));
    let (size, file) = match opened {
        Ok(opened) => opened,
        Err(source) => return Err(CleanStopError::OpenDatabase { db, source }),
    };
    match Database::open(file) {
        Ok(database) => Ok((database.meta().txid.0, size)),
        Err(source) => Err(CleanStopError::Database { db, source }),
    }
}

fn read_wal_end(wal: &Path) -> Result<WalEnd, CleanStopError> {
    let log = Log::open(wal)?;
    let Some(last) = log.segments().last() else {
        let dir = wal.to_owned();
        return Err(ListError::Empty { dir }.into());
    };
    let segment = || last.path.clone();
    let file = File::open(&last.path).map_err(|source| CleanStopError::OpenSegment {
        segment: segment(),
        source,
    })?;
    let input = BufReader::with_capacity(256 << 10, file);
    // The first record of a segment carries over the CRC, so the last segment is sufficient.
    let mut decoder = Decoder::new(input, &last.path, last.length, SegmentRole::Last, 0);
    loop {
        match decoder.next_record() {
            Ok(NextRecord::Record(_)) => {}
            Ok(NextRecord::End) => break,
            Ok(NextRecord::Torn(_)) => return Err(CleanStopError::Torn { segment: segment() }),
            Err(source) => return Err(CleanStopError::Segment { source }),
        }
    }
    Ok(WalEnd {
        segment: last.name.to_string(),
        length: last.length,
        end: decoder.offset(),
        crc: decoder.crc(),
    })
}

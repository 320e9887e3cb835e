//! The note an orderly stop leaves behind, so that the next start need not look at everything again.
//!
//! ```text
//! etcd has ended → CleanStop::observe → write ─── <data dir>.clean-stop ───► take (the note is gone) → still_holds
//! ```
//!
//! Holds: a note is good for one start, since taking it removes it; it counts only while the database and the end of
//! the log are what they were. **After a crash** there is no note, or one that does not hold: both mean a full
//! verification.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use mainstay_bbolt::{Database, BboltError as PageError};
use mainstay_wal::{DecodeError, NextRecord, Decoder, ListError, Log, SegmentRole};
use serde::{Deserialize, Serialize};

use crate::durable;
use crate::lock::{self, LockError};

/// A note has some hundred bytes.
const MAX_RECORD_BYTES: u64 = 64 << 10;

/// What a data directory was when etcd had ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CleanStop {
    /// The newest write transaction of the database.
    pub db_txid: u64,
    /// Bytes of the database file.
    pub db_size: u64,
    /// Where the log ended.
    pub wal_last: WalEnd,
    /// Who wrote the note.
    pub written_by: String,
}

/// Where a log ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WalEnd {
    /// The last segment.
    pub segment: String,
    /// Bytes of the file, prepared zeros included.
    pub length: u64,
    /// Bytes that are written.
    pub end: u64,
    /// The checksum the log has reached there.
    pub crc: u32,
}

/// Why a directory cannot be described, or its note not be kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CleanStopError {
    /// etcd has not ended.
    #[error("{} is in use", db.display())]
    InUse {
        /// The database.
        db: PathBuf,
    },
    /// Whether it has ended cannot be told.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The database cannot be opened.
    #[error("open {}", db.display())]
    OpenDatabase {
        /// The database.
        db: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The database is no database.
    #[error("read {}", db.display())]
    Database {
        /// The database.
        db: PathBuf,
        /// What is wrong with it.
        source: PageError,
    },
    /// There is no log.
    #[error(transparent)]
    List(#[from] ListError),
    /// The last segment cannot be opened.
    #[error("open {}", segment.display())]
    OpenSegment {
        /// The segment.
        segment: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The last segment is damaged.
    #[error("read the end of the log")]
    Segment {
        /// What is wrong with it.
        source: DecodeError,
    },
    /// The log has a torn end, which an orderly stop does not leave.
    #[error("the log ends with a torn record in {}", segment.display())]
    Torn {
        /// The segment.
        segment: PathBuf,
    },
    /// The note cannot be written.
    #[error("write {}", file.display())]
    Write {
        /// The note.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The note cannot be read or removed.
    #[error("take {}", file.display())]
    Take {
        /// The note.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl CleanStop {
    /// Describes a directory whose etcd has ended in an orderly way.
    pub fn observe(data_dir: &Path, written_by: &str) -> Result<Self, CleanStopError> {
        let member = data_dir.join("member");
        let db = member.join("snap/db");
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

    /// Leaves the note beside `data_dir`.
    pub fn write(&self, data_dir: &Path) -> Result<(), CleanStopError> {
        let file = record_path(data_dir);
        let json = serde_json::to_vec(self).map_err(io::Error::from);
        json.and_then(|json| durable::replace_file(&file, &json))
            .map_err(|source| CleanStopError::Write { file, source })
    }

    /// Takes the note beside `data_dir` away. `None` when there is none, or when it says nothing.
    pub fn take(data_dir: &Path) -> Result<Option<Self>, CleanStopError> {
        let file = record_path(data_dir);
        let taken = durable::read_small_file(&file, MAX_RECORD_BYTES).and_then(|bytes| {
            let Some(bytes) = bytes else { return Ok(None) };
            fs::remove_file(&file)?;
            durable::sync_dir(durable::parent_dir(&file))?;
            Ok(serde_json::from_slice(&bytes).ok())
        });
        taken.map_err(|source| CleanStopError::Take { file, source })
    }

    /// Whether the directory is still what the note says. What cannot be read does not hold.
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

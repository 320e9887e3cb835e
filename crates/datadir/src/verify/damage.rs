//! Turns the errors of the format crates into faults with a place, or into being unable to look.

use std::path::Path;

use mainstay_bbolt::Error as PageError;
use mainstay_mvcc::{FactsError, RowFault};
use mainstay_wal::{At, DecodeError, ListError, LogError, ReadSnapError};

use super::error::{VerifyError, is_truncation};
use super::findings::Stop;
use super::report::{FaultKind, sentence};

/// A database whose pages are wrong.
pub(super) fn of_pages(file: &Path, error: PageError) -> Stop {
    let reason = sentence(&error);
    let damage = |what, place| Stop::damage(what, file, place, reason);
    match error {
        PageError::Read { offset, source, .. } if !is_truncation(&source) => {
            Stop::Blocked(VerifyError::Read {
                file: file.to_owned(),
                place: format!("byte {offset}"),
                source,
            })
        }
        PageError::Read { offset, .. } => damage(FaultKind::Truncated, format!("byte {offset}")),
        PageError::NoMeta { .. } => damage(FaultKind::NoMetaPage, "pages 0 and 1".to_owned()),
        PageError::Truncated { actual, .. } => {
            damage(FaultKind::Truncated, format!("byte {actual}"))
        }
        PageError::OutOfRange { page, .. }
        | PageError::WrongId { page, .. }
        | PageError::WrongKind { page, .. }
        | PageError::Oversized { page, .. }
        | PageError::Lonely { page, .. }
        | PageError::Uneven { page, .. }
        | PageError::Shared { page }
        | PageError::TooDeep { page, .. }
        | PageError::Loop { page } => damage(FaultKind::Page, format!("page {page}")),
        PageError::Element { page, element }
        | PageError::Order { page, element }
        | PageError::Separator { page, element, .. }
        | PageError::Nested { page, element } => {
            damage(FaultKind::Page, format!("page {page}, element {element}"))
        }
        PageError::BucketHeader { name } => damage(FaultKind::Page, format!("bucket {name:?}")),
        _ => damage(FaultKind::Page, String::new()),
    }
}

/// A database that cannot say where it stands.
pub(super) fn of_facts(file: &Path, error: FactsError) -> Stop {
    let reason = sentence(&error);
    let damage = |what, place| Stop::damage(what, file, place, reason);
    match error {
        FactsError::Structure(error) => of_pages(file, error),
        FactsError::LastRow { .. } => damage(FaultKind::Row, "newest row".to_owned()),
        FactsError::Position { name, .. } => {
            damage(FaultKind::Entry, format!("bucket meta, {name}"))
        }
        FactsError::Oversized { name, .. } => damage(FaultKind::Entry, format!("bucket {name}")),
        FactsError::NotEtcd => damage(FaultKind::NotEtcd, String::new()),
        _ => damage(FaultKind::Entry, String::new()),
    }
}

/// A row that no server can have written.
pub(super) fn of_row(file: &Path, fault: &RowFault) -> Stop {
    let reason = sentence(fault);
    let damage = |what, place| Stop::damage(what, file, place, reason);
    match fault {
        RowFault::Key { ordinal, .. } => damage(FaultKind::Row, format!("row {ordinal}")),
        RowFault::Value { revision, .. } | RowFault::Numbers { revision, .. } => {
            damage(FaultKind::Row, format!("revision {revision}"))
        }
        RowFault::Discontinuous { revision, .. } | RowFault::OrphanDelete { revision } => {
            damage(FaultKind::History, format!("revision {revision}"))
        }
        RowFault::Gap { found, sub, .. } => {
            damage(FaultKind::RevisionGap, format!("revision {found}.{sub}"))
        }
        _ => damage(FaultKind::Row, String::new()),
    }
}

/// A folder that is no log.
pub(super) fn of_listing(error: ListError) -> Stop {
    let reason = sentence(&error);
    match error {
        ListError::List { dir, source } => VerifyError::List { dir, source }.into(),
        ListError::Stat { file, source } => VerifyError::Open { file, source }.into(),
        ListError::NotContiguous { file, before, .. } => Stop::damage(
            FaultKind::WalNames,
            &file,
            format!("after {before}"),
            reason,
        ),
        ListError::Empty { dir } => Stop::damage(FaultKind::PartMissing, &dir, "", reason),
        _ => Stop::damage(FaultKind::WalNames, Path::new(""), "", reason),
    }
}

/// A log that cannot be read to its end.
pub(super) fn of_log(folder: &Path, error: LogError) -> Stop {
    match error {
        LogError::Open { file, source } => VerifyError::Open { file, source }.into(),
        LogError::Decode(DecodeError::Read { at, source }) if !is_truncation(&source) => {
            VerifyError::Read {
                file: at.file,
                place: format!("byte {}", at.offset),
                source,
            }
            .into()
        }
        damage => {
            let reason = without_place(sentence(&damage), at_of(&damage));
            let what = match damage {
                LogError::Decode(_) | LogError::Headless { .. } | LogError::Message { .. } => {
                    FaultKind::WalRecord
                }
                _ => FaultKind::WalOrder,
            };
            match at_of(&damage) {
                Some(at) => Stop::damage(what, &at.file, format!("byte {}", at.offset), reason),
                None => Stop::damage(what, folder, "", reason),
            }
        }
    }
}

/// A sentence that begins with its place, without it: a finding has the place already.
fn without_place(sentence: String, at: Option<&At>) -> String {
    let prefix = at.map(|at| format!("{at}: "));
    match prefix.and_then(|prefix| sentence.strip_prefix(&prefix).map(str::to_owned)) {
        Some(rest) => rest,
        None => sentence,
    }
}

fn at_of(error: &LogError) -> Option<&At> {
    match error {
        LogError::Decode(
            DecodeError::Read { at, .. }
            | DecodeError::Overlong { at, .. }
            | DecodeError::Oversize { at, .. }
            | DecodeError::Padding { at, .. }
            | DecodeError::Malformed { at, .. }
            | DecodeError::Crc { at, .. }
            | DecodeError::Chain { at, .. }
            | DecodeError::UnknownKind { at, .. },
        )
        | LogError::Headless { at }
        | LogError::ConflictingMetadata { at, .. }
        | LogError::Misnamed { at, .. }
        | LogError::Message { at, .. }
        | LogError::UnknownEntryKind { at, .. }
        | LogError::IndexZero { at }
        | LogError::IndexGap { at, .. }
        | LogError::TermFell { at, .. }
        | LogError::EmptyConfChange { at, .. }
        | LogError::StateFell { at, .. }
        | LogError::EntryAsState { at }
        | LogError::MarkTooLarge { at, .. }
        | LogError::TooMany { at, .. } => Some(at),
        _ => None,
    }
}

/// What is wrong with a raft snapshot, or why it cannot be looked at.
pub(super) fn of_snapshot(error: ReadSnapError) -> Result<String, VerifyError> {
    match error {
        ReadSnapError::Open { file, source } => Err(VerifyError::Open { file, source }),
        ReadSnapError::Read { file, source } => Err(VerifyError::Read {
            file,
            place: "the whole of it".to_owned(),
            source,
        }),
        ReadSnapError::Content { source, .. } => Ok(sentence(&source)),
        other => Ok(sentence(&other)),
    }
}

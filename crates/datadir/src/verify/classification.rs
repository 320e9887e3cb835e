//! Converts errors of the format crates into faults with a location, or into verification errors.

use std::path::Path;

use mainstay_bbolt::BboltError as PageError;
use mainstay_mvcc::{DatabaseStatusError, RowFault};
use mainstay_wal::{DecodeError, ListError, LogError, ReadSnapError, SegmentPosition};

use super::error::{VerifyError, is_truncated_read};
use super::findings::CheckFailure;
use super::report::{FaultKind, format_error_chain};

/// Classifies an error in the page structure of the database.
pub(super) fn classify_page_error(file: &Path, error: PageError) -> CheckFailure {
    let reason = format_error_chain(&error);
    let damage = |what, place| CheckFailure::damage(what, file, place, reason);
    match error {
        // An I/O error proves nothing about the data: the verification fails instead of reporting damage.
        PageError::Read { offset, source, .. } if !is_truncated_read(&source) => {
            CheckFailure::Unverifiable(VerifyError::Read {
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
        | PageError::TooFewChildren { page, .. }
        | PageError::UnevenDepth { page, .. }
        | PageError::SharedPage { page }
        | PageError::TooDeep { page, .. }
        | PageError::PageLoop { page } => damage(FaultKind::Page, format!("page {page}")),
        PageError::ElementOutOfBounds { page, element }
        | PageError::KeyOrder { page, element }
        | PageError::SeparatorMismatch { page, element, .. }
        | PageError::NestedBucket { page, element } => {
            damage(FaultKind::Page, format!("page {page}, element {element}"))
        }
        PageError::InvalidBucketHeader { name } => {
            damage(FaultKind::Page, format!("bucket {name:?}"))
        }
        _ => damage(FaultKind::Page, String::new()),
    }
}

/// Classifies an error in reading revision, index or term of the database.
pub(super) fn classify_facts_error(file: &Path, error: DatabaseStatusError) -> CheckFailure {
    let reason = format_error_chain(&error);
    let damage = |what, place| CheckFailure::damage(what, file, place, reason);
    match error {
        DatabaseStatusError::Structure(error) => classify_page_error(file, error),
        DatabaseStatusError::LastRow { .. } => damage(FaultKind::Row, "newest row".to_owned()),
        DatabaseStatusError::InvalidPosition { name, .. } => {
            damage(FaultKind::Entry, format!("bucket meta, {name}"))
        }
        DatabaseStatusError::BucketTooLarge { name, .. } => {
            damage(FaultKind::Entry, format!("bucket {name}"))
        }
        DatabaseStatusError::NotEtcd => damage(FaultKind::NotEtcd, String::new()),
        _ => damage(FaultKind::Entry, String::new()),
    }
}

/// Classifies a row that etcd cannot have written.
pub(super) fn classify_row_fault(file: &Path, fault: &RowFault) -> CheckFailure {
    let reason = format_error_chain(fault);
    let damage = |what, place| CheckFailure::damage(what, file, place, reason);
    match fault {
        RowFault::InvalidKey { ordinal, .. } => damage(FaultKind::Row, format!("row {ordinal}")),
        RowFault::InvalidValue { revision, .. }
        | RowFault::InconsistentNumbers { revision, .. } => {
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

/// Classifies an error in listing the WAL directory.
pub(super) fn classify_list_error(error: ListError) -> CheckFailure {
    let reason = format_error_chain(&error);
    match error {
        ListError::List { dir, source } => VerifyError::List { dir, source }.into(),
        ListError::Stat { file, source } => VerifyError::Open { file, source }.into(),
        ListError::NotContiguous { file, before, .. } => CheckFailure::damage(
            FaultKind::WalNames,
            &file,
            format!("after {before}"),
            reason,
        ),
        ListError::Empty { dir } => CheckFailure::damage(FaultKind::PartMissing, &dir, "", reason),
        _ => CheckFailure::damage(FaultKind::WalNames, Path::new(""), "", reason),
    }
}

/// Classifies an error in reading the WAL.
pub(super) fn classify_log_error(wal_dir: &Path, error: LogError) -> CheckFailure {
    match error {
        LogError::Open { file, source } => VerifyError::Open { file, source }.into(),
        // An I/O error proves nothing about the data.
        LogError::Decode(DecodeError::Read { at, source }) if !is_truncated_read(&source) => {
            VerifyError::Read {
                file: at.file,
                place: format!("byte {}", at.offset),
                source,
            }
            .into()
        }
        damage => {
            let reason = strip_location(format_error_chain(&damage), error_location(&damage));
            let what = match damage {
                LogError::Decode(_)
                | LogError::MissingHeader { .. }
                | LogError::InvalidMessage { .. } => FaultKind::WalRecord,
                _ => FaultKind::WalOrder,
            };
            match error_location(&damage) {
                Some(at) => {
                    CheckFailure::damage(what, &at.file, format!("byte {}", at.offset), reason)
                }
                None => CheckFailure::damage(what, wal_dir, "", reason),
            }
        }
    }
}

/// Removes a leading location from the message: a finding already has one.
fn strip_location(sentence: String, at: Option<&SegmentPosition>) -> String {
    let prefix = at.map(|at| format!("{at}: "));
    match prefix.and_then(|prefix| sentence.strip_prefix(&prefix).map(str::to_owned)) {
        Some(rest) => rest,
        None => sentence,
    }
}

fn error_location(error: &LogError) -> Option<&SegmentPosition> {
    match error {
        LogError::Decode(
            DecodeError::Read { at, .. }
            | DecodeError::FrameTooLong { at, .. }
            | DecodeError::RecordTooLarge { at, .. }
            | DecodeError::InvalidPadding { at, .. }
            | DecodeError::Malformed { at, .. }
            | DecodeError::CrcMismatch { at, .. }
            | DecodeError::CrcChainBroken { at, .. }
            | DecodeError::UnknownKind { at, .. },
        )
        | LogError::MissingHeader { at }
        | LogError::ConflictingMetadata { at, .. }
        | LogError::SegmentNameMismatch { at, .. }
        | LogError::InvalidMessage { at, .. }
        | LogError::UnknownEntryKind { at, .. }
        | LogError::IndexZero { at }
        | LogError::IndexGap { at, .. }
        | LogError::TermDecreased { at, .. }
        | LogError::EmptyConfChange { at, .. }
        | LogError::StateTermDecreased { at, .. }
        | LogError::EntryInStateRecord { at }
        | LogError::MarkTooLarge { at, .. }
        | LogError::TooMany { at, .. } => Some(at),
        _ => None,
    }
}

/// The damage of a raft snapshot, or the error that prevented reading it.
pub(super) fn classify_snapshot_error(error: ReadSnapError) -> Result<String, VerifyError> {
    match error {
        ReadSnapError::Open { file, source } => Err(VerifyError::Open { file, source }),
        ReadSnapError::Read { file, source } => Err(VerifyError::Read {
            file,
            place: "whole file".to_owned(),
            source,
        }),
        ReadSnapError::Content { source, .. } => Ok(format_error_chain(&source)),
        other => Ok(format_error_chain(&other)),
    }
}

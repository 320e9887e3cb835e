//! Each kind of invalid history has its own error.

use mainstay_ids::Revision;
use mainstay_mvcc::{HistoryWarning, RevisionKey, RowFault};

use crate::support::{
    PutRow, Row, build_database, check_history, data_set_1, data_set_2, delete, put,
};

fn history_fault(rows: &[Row], compact: Option<i64>) -> RowFault {
    check_history(&build_database(rows, compact, compact)).unwrap_err()
}

#[test]
fn real_histories_are_valid() {
    let summary = check_history(&build_database(&data_set_1(), None, None)).unwrap();
    assert_eq!(
        (summary.rows, summary.live_keys, summary.leased_keys),
        (9, 4, 1)
    );
    assert_eq!(summary.warnings, [HistoryWarning::UnknownLease { keys: 1 }]);
    assert!(
        check_history(&build_database(&data_set_2(), None, None))
            .unwrap()
            .warnings
            .is_empty()
    );
}

#[test]
fn missing_transaction_is_a_gap() {
    // Skips the last change of a transaction and the last transaction: their loss leaves no trace.
    for missing in 0..7 {
        let mut rows = data_set_1();
        rows.remove(missing);
        assert!(
            matches!(
                history_fault(&rows, None),
                RowFault::Gap { .. } | RowFault::Discontinuous { .. }
            ),
            "row {missing}"
        );
    }
    let mut rows = data_set_1();
    rows.remove(6);
    assert!(matches!(
        history_fault(&rows, None),
        RowFault::Gap {
            found: Revision(7),
            sub: 2,
            ..
        }
    ));
}

#[test]
fn history_that_starts_late_requires_a_compaction() {
    let rows = [put((5, 0), "a", "v")];
    assert!(matches!(history_fault(&rows, None), RowFault::Gap { .. }));
    assert!(check_history(&build_database(&rows, Some(4), Some(4))).is_ok());
    assert!(matches!(
        history_fault(&rows, Some(3)),
        RowFault::Gap { .. }
    ));
}

#[test]
fn contradicting_revision_and_version_are_reported() {
    for (created, version) in [(0, 1), (3, 1), (2, 2), (2, 0), (1, 1), (2, -1)] {
        let row = PutRow {
            at: (2, 0),
            key: "a",
            value: "",
            created,
            version,
            lease: 0,
        }
        .to_row();
        assert!(
            matches!(
                history_fault(&[row], None),
                RowFault::InconsistentNumbers { .. }
            ),
            "{created} {version}"
        );
    }
    let mut row = put((2, 0), "a", "");
    row.key.sub = 0;
    row.value = put((3, 0), "a", "").value;
    let modified = Revision(3);
    assert!(
        matches!(history_fault(&[row], None), RowFault::InconsistentNumbers { modified: m, .. } if m == modified)
    );
}

#[test]
fn skipped_version_is_discontinuous() {
    let rows = [
        put((2, 0), "a", "1"),
        PutRow {
            at: (3, 0),
            key: "a",
            value: "2",
            created: 2,
            version: 3,
            lease: 0,
        }
        .to_row(),
    ];
    assert!(matches!(
        history_fault(&rows, None),
        RowFault::Discontinuous {
            version: 3,
            previous: 1,
            ..
        }
    ));
}

#[test]
fn delete_of_a_missing_key_is_an_orphan_unless_compacted() {
    let rows = [put((2, 0), "a", "1"), delete((3, 0), "b")];
    assert!(matches!(
        history_fault(&rows, None),
        RowFault::OrphanDelete {
            revision: Revision(3)
        }
    ));
    assert!(check_history(&build_database(&rows[1..], Some(3), Some(3))).is_ok());
}

#[test]
fn rows_left_by_a_compaction_are_a_warning() {
    let rows = data_set_1();
    let summary = check_history(&build_database(&rows, Some(5), Some(5))).unwrap();
    assert!(matches!(
        summary.warnings.first(),
        Some(HistoryWarning::UncompactedRows { rows: 1, .. })
    ));
    let unfinished = check_history(&build_database(&rows, Some(5), None)).unwrap();
    assert!(!matches!(
        unfinished.warnings.first(),
        Some(HistoryWarning::UncompactedRows { .. })
    ));
}

#[test]
fn marker_of_a_bumped_revision_is_accepted() {
    let mut rows = data_set_1();
    let key = RevisionKey::first_of(Revision(1_000));
    rows.push(Row {
        key,
        value: Vec::new(),
    });
    assert!(check_history(&build_database(&rows, Some(1_000), None)).is_ok());
    assert!(matches!(history_fault(&rows, None), RowFault::Gap { .. }));
}

/// Rows are compared in batches, so an error may be reported some rows later. It must still be the first error of the
/// history, wherever it is in a batch.
#[test]
fn first_of_two_faults_is_reported() {
    for broken in [2, 255, 256, 257, 600, 998] {
        let mut rows: Vec<Row> = (2..1000)
            .map(|main| put((main, 0), &main.to_string(), "v"))
            .collect();
        let again = PutRow {
            at: (broken, 0),
            key: &broken.to_string(),
            value: "v",
            created: 1,
            version: 9,
            lease: 0,
        };
        rows[usize::try_from(broken).unwrap() - 2] = again.to_row();
        let discontinuous = RowFault::Discontinuous {
            revision: Revision(broken),
            version: 9,
            previous: 0,
        };
        assert_eq!(
            history_fault(&rows, None),
            discontinuous,
            "found in a later row or at the end"
        );
        rows[997].value.clear();
        assert_eq!(
            history_fault(&rows, None),
            discontinuous,
            "not the row without a value after it"
        );
    }
}

//! A damaged database is an error or reads to its end: no panic, no loop, no runaway memory.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mainstay_bbolt::{BboltError, Database, check};
use mainstay_mvcc::{DatabaseStatus, HistoryChecker, schema};

fuzz_target!(|input: &[u8]| {
    let file = mainstay_fuzz::damaged(mainstay_fuzz::database(), input);
    let Ok(database) = Database::open(file.as_slice()) else {
        return;
    };
    let facts = DatabaseStatus::read(&database);
    let mut history = facts.as_ref().ok().map(HistoryChecker::new);
    let mut rows = 0u64;
    let checked = check(&database, |bucket, item| {
        if let (Some(history), true) = (&mut history, bucket == schema::KEY) {
            let _ = history.check_row(item.key, item.value);
            rows += 1;
        }
        Ok::<_, BboltError>(())
    });
    let Ok(Some(root)) = database.bucket(schema::KEY) else {
        return;
    };
    let mut walked = 0u64;
    let ended = walk(&database, &root, &mut walked);
    // What the full check accepts, a walk can read.
    if checked.is_ok() && facts.is_ok() {
        assert!(ended.is_ok());
        assert_eq!(walked, rows);
    }
});

fn walk(
    database: &Database<&[u8]>,
    root: &mainstay_bbolt::BucketRoot,
    walked: &mut u64,
) -> Result<(), BboltError> {
    let mut cursor = database.scan_back(root)?;
    while cursor.next()?.is_some() {
        *walked += 1;
    }
    Ok(())
}

//! Tells an object that must not go yet from a deletion that failed.

use std::error::Error as StdError;

use mainstay_store::{ErrorClass, StoreError};

/// What stores say, in lower case. There is no common status for it: S3 and Google refuse, Azure and Alibaba
/// speak of a conflict, and only the code or the sentence in the answer tells why.
const LOCK_MESSAGES: [&str; 8] = [
    "objectlocked",             // S3 API of several makers
    "object lock",              // Amazon, as a sentence
    "worm protected",           // makers of S3 servers
    "retentionpolicynotmet",    // Google, as a code
    "retention policy",         // Google, as a sentence
    "legal hold",               // Amazon, Google, Azure
    "blobimmutableduetopolicy", // Azure
    "fileimmutable",            // Alibaba
];

/// Whether the store refused because the object is under lock.
pub(super) fn is_locked(error: &StoreError) -> bool {
    match error.class() {
        // Nothing else can be in conflict with a deletion.
        ErrorClass::Exists => true,
        ErrorClass::Denied | ErrorClass::Invalid => mentions_lock(error),
        _ => false,
    }
}

/// Looks at the answer only: the error itself names the object, which may be called anything.
fn mentions_lock(error: &StoreError) -> bool {
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string().to_lowercase();
        if LOCK_MESSAGES.iter().any(|word| text.contains(word)) {
            return true;
        }
        next = cause.source();
    }
    false
}

//! Distinguishes a locked object from a failed deletion.

use std::error::Error as StdError;

use mainstay_store::{ErrorClass, StoreError};

/// Texts in store responses that mean "locked", in lower case. There is no common status: S3 and Google answer with
/// access denied, Azure and Alibaba with a conflict, and only the code or message in the response tells the reason.
const LOCK_MESSAGES: [&str; 8] = [
    "objectlocked",             // S3-compatible servers
    "object lock",              // Amazon, message
    "worm protected",           // S3-compatible servers
    "retentionpolicynotmet",    // Google, code
    "retention policy",         // Google, message
    "legal hold",               // Amazon, Google, Azure
    "blobimmutableduetopolicy", // Azure
    "fileimmutable",            // Alibaba
];

/// Whether the store refused the deletion because the object is locked.
pub(super) fn is_locked(error: &StoreError) -> bool {
    match error.class() {
        // A deletion conflicts with nothing but a lock.
        ErrorClass::Exists => true,
        ErrorClass::Denied | ErrorClass::Invalid => mentions_lock(error),
        _ => false,
    }
}

/// Searches the causes only: the error itself contains the object key, which may contain any of the texts.
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

//! An error with its causes, on one line.

use std::error::Error;
use std::fmt;

/// Displays an error with its sources as `a: b: c`. A source that its parent already ends with is left out.
#[derive(Clone, Copy, Debug)]
pub struct ErrorChain<'a>(pub &'a (dyn Error + 'a));

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = self.0.to_string();
        f.write_str(&shown)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let text = error.to_string();
            // Errors that format their source in their own text would otherwise print it twice.
            if !shown.ends_with(&text) {
                write!(f, ": {text}")?;
                shown = text;
            }
            cause = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("open the store")]
    struct TopError(#[source] MiddleError);

    #[derive(Debug, thiserror::Error)]
    #[error("get the bucket: {0}")]
    struct MiddleError(#[source] RootError);

    #[derive(Debug, thiserror::Error)]
    #[error("connection refused")]
    struct RootError;

    #[test]
    fn error_chain_lists_each_cause_once() {
        let error = TopError(MiddleError(RootError));
        assert_eq!(
            ErrorChain(&error).to_string(),
            "open the store: get the bucket: connection refused"
        );
    }
}

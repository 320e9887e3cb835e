//! Values that must never be logged.

use std::fmt;

/// A credential whose `Debug` output hides the value.
///
/// It has no `Display`, `Serialize` or `Deref`: [`Secret::expose`] is the only access, so every use can
/// be found by searching for that name.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a value that must not be logged.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value in clear text, for the client that signs requests with it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether the value is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_hides_the_value_and_its_length() {
        assert_eq!(format!("{:?}", Secret::new("hunter2")), "Secret(…)");
        assert_eq!(
            format!("{:#?}", Some(Secret::new(""))),
            "Some(\n    Secret(…),\n)"
        );
    }
}

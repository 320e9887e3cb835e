//! Values that must never be printed.

use std::fmt;

/// A credential: readable by code that asks for it, invisible in `Debug` output.
///
/// There is no `Display`, no `Serialize` and no `Deref`; [`Secret::expose`] is the only way out, so
/// every use can be found by its name.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Takes ownership of a value that must stay out of logs.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value itself, for the client that signs requests with it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether nothing is in it.
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

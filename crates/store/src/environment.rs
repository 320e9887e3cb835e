//! Environment variables of the process, captured once.
//!
//! Credential lookup reads many variables. Passing them as a value lets two stores of one process use
//! different variables, and lets tests run without changing the process environment.

use std::collections::BTreeMap;
use std::fmt;

/// A set of environment variables. `Debug` prints names only, because values may be secrets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// Captures the variables of this process; omits those that are not UTF-8.
    pub fn from_process() -> Self {
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }

    /// The value of `name`; `None` if unset or empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    /// The non-empty variables whose names start with `prefix`, in name order.
    pub fn vars_with_prefix<'a>(
        &'a self,
        prefix: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.0
            .iter()
            .filter(move |(name, value)| name.starts_with(prefix) && !value.is_empty())
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        Self(
            pairs
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        )
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_variable_counts_as_unset() {
        let env = Environment::from_iter([("A", ""), ("B", "b")]);
        assert_eq!(env.get("A"), None);
        assert_eq!(env.get("B"), Some("b"));
        assert_eq!(env.vars_with_prefix("").collect::<Vec<_>>(), [("B", "b")]);
    }

    #[test]
    fn debug_output_shows_names_only() {
        let env = Environment::from_iter([("ECS_SECRET_ACCESS_KEY", "hunter2")]);
        assert_eq!(format!("{env:?}"), r#"{"ECS_SECRET_ACCESS_KEY"}"#);
    }
}

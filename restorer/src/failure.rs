//! The failure of a verb: verdict, reason and next step.

use std::error::Error;
use std::fmt;

use mainstay_telemetry::ErrorChain;
use mainstay_verdict::Verdict;
use serde_json::{Value, json};

/// An error that maps to a verdict, and to what the user can do about it.
pub(crate) trait Classify: Error {
    fn verdict(&self) -> Verdict;

    /// What the user can do; `None` if the reason already says it.
    fn next_step(&self) -> Option<String> {
        None
    }

    /// Additional fields of the JSON output, as an object; `Null` for none.
    fn details(&self) -> Value {
        Value::Null
    }
}

/// The failure of a verb.
#[derive(Clone, Debug)]
pub struct CommandFailure {
    verdict: Verdict,
    reason: String,
    next_step: Option<String>,
    details: Value,
}

impl CommandFailure {
    /// Creates a failure whose reason is the error with its sources.
    pub(crate) fn new(verdict: Verdict, error: &(dyn Error + 'static)) -> Self {
        let reason = ErrorChain(error).to_string();
        Self {
            verdict,
            reason,
            next_step: None,
            details: Value::Null,
        }
    }

    /// Creates a failure from a sentence.
    pub(crate) fn from_reason(verdict: Verdict, reason: impl Into<String>) -> Self {
        Self {
            verdict,
            reason: reason.into(),
            next_step: None,
            details: Value::Null,
        }
    }

    #[must_use]
    pub(crate) fn with_next_step(mut self, next_step: impl Into<String>) -> Self {
        self.next_step = Some(next_step.into());
        self
    }

    /// Adds fields to the JSON output.
    #[must_use]
    pub(crate) fn with_details(mut self, details: Value) -> Self {
        self.details = details;
        self
    }

    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Returns verdict, reason, next step and details as one object.
    pub fn to_json(&self) -> Value {
        let mut object = json!({"verdict": self.verdict, "reason": self.reason});
        if let (Some(object), Some(next)) = (object.as_object_mut(), &self.next_step) {
            object.insert("nextStep".into(), next.as_str().into());
        }
        if let (Some(object), Value::Object(details)) = (object.as_object_mut(), &self.details) {
            object.extend(details.clone());
        }
        object
    }
}

impl fmt::Display for CommandFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.verdict, self.reason)?;
        match &self.next_step {
            Some(next) => writeln!(f, "next step: {next}"),
            None => Ok(()),
        }
    }
}

impl<E: Classify + 'static> From<E> for CommandFailure {
    fn from(error: E) -> Self {
        let failure = Self::new(error.verdict(), &error).with_details(error.details());
        match error.next_step() {
            Some(next) => failure.with_next_step(next),
            None => failure,
        }
    }
}

pub(crate) mod classification;

//! Admission cases: changes of resources and the answer that an API server must give.

use serde_json::Value;

use crate::samples::load_sample;

/// A create or an update of a resource.
pub(crate) enum ResourceChange {
    Create(Value),
    Update(Value, Value),
}

impl ResourceChange {
    /// The resource after the change.
    pub(crate) fn new_resource(&self) -> &Value {
        match self {
            Self::Create(new) | Self::Update(_, new) => new,
        }
    }
}

/// Expected answer to a change.
pub(crate) enum ExpectedAdmission {
    /// Stored.
    Stored,
    /// Stored, and the types can deserialize it.
    Readable,
    /// Rejected by newer API servers, which check the format of a number; stored by others, but the types cannot
    /// deserialize it.
    NeverReadable,
    /// Rejected because of the field, or of something in it.
    Rejected { field: String },
    /// Rejected because the field is missing.
    FieldMissing { field: String },
    /// Rejected by the CEL rule at this path, with the message of the rule.
    RuleViolated {
        at: &'static str,
        message: &'static str,
    },
}

impl ExpectedAdmission {
    /// Whether the resource is stored.
    pub(crate) fn is_stored(&self) -> bool {
        matches!(self, Self::Stored | Self::Readable)
    }
}

/// A change and its expected answer.
pub(crate) struct AdmissionCase {
    /// Description for the failure message.
    pub(crate) name: String,
    pub(crate) change: ResourceChange,
    pub(crate) expected: ExpectedAdmission,
}

/// Samples with one change each.
#[derive(Default)]
pub(crate) struct AdmissionCases(Vec<AdmissionCase>);

/// A claim about admission, as a function that adds the cases which prove it.
pub(crate) type AddCasesFn = fn(&mut AdmissionCases);

impl AdmissionCases {
    /// The cases of these claims.
    pub(crate) fn collect(claims: &[AddCasesFn]) -> Vec<AdmissionCase> {
        let mut cases = Self::default();
        for claim in claims {
            claim(&mut cases);
        }
        cases.0
    }

    /// The values are stored, and the types can read them.
    pub(crate) fn accepts(&mut self, name: &str, pointer: &str, values: &[Value]) {
        for value in values {
            self.add(name, pointer, Some(value), ExpectedAdmission::Readable);
        }
    }

    pub(crate) fn rejects(&mut self, name: &str, pointer: &str, values: &[Value]) {
        for value in values {
            let field = field_path(pointer);
            self.add(
                name,
                pointer,
                Some(value),
                ExpectedAdmission::Rejected { field },
            );
        }
    }

    /// The values are rejected, or stored although the types cannot read them.
    pub(crate) fn never_reads(&mut self, name: &str, pointer: &str, values: &[Value]) {
        for value in values {
            self.add(name, pointer, Some(value), ExpectedAdmission::NeverReadable);
        }
    }

    /// The field is required.
    pub(crate) fn requires(&mut self, name: &str, pointer: &str) {
        let field = field_path(pointer);
        self.add(
            name,
            pointer,
            None,
            ExpectedAdmission::FieldMissing { field },
        );
    }

    /// The field is optional.
    pub(crate) fn allows_missing(&mut self, name: &str, pointer: &str) {
        self.add(name, pointer, None, ExpectedAdmission::Stored);
    }

    fn add(
        &mut self,
        name: &str,
        pointer: &str,
        value: Option<&Value>,
        expected: ExpectedAdmission,
    ) {
        let shown = value.map_or_else(|| "missing".to_owned(), Value::to_string);
        self.0.push(AdmissionCase {
            name: format!("{name}, {pointer} = {shown}"),
            change: ResourceChange::Create(sample_with(name, pointer, value.cloned())),
            expected,
        });
    }
}

/// The path of a JSON pointer as an API server reports it: `/spec/urls/0/name` is `spec.urls[0].name`.
fn field_path(pointer: &str) -> String {
    let mut path = String::new();
    for part in pointer.split('/').filter(|part| !part.is_empty()) {
        if part.parse::<usize>().is_ok() {
            path.extend(["[", part, "]"]);
        } else {
            path.push_str(if path.is_empty() { "" } else { "." });
            path.push_str(part);
        }
    }
    path
}

/// A path without list indexes: `spec.urls[3].name` becomes `spec.urls[].name`.
pub(crate) fn without_indexes(path: &str) -> String {
    let parts = path.split('[');
    parts
        .map(|part| {
            part.split_once(']')
                .map_or_else(|| part.to_owned(), |(_, rest)| format!("[]{rest}"))
        })
        .collect()
}

/// The sample with one value at a JSON pointer, inserted if missing; `None` removes it.
pub(crate) fn sample_with(name: &str, pointer: &str, value: Option<Value>) -> Value {
    let mut resource = load_sample(name);
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = resource
        .pointer_mut(parent)
        .unwrap_or_else(|| panic!("{name} has no {parent}"));
    match (parent, value) {
        (Value::Array(items), Some(value)) => items[key.parse::<usize>().unwrap()] = value,
        (Value::Object(fields), Some(value)) => drop(fields.insert(key.to_owned(), value)),
        (Value::Object(fields), None) => drop(fields.remove(key).unwrap()),
        (other, _) => panic!("{pointer} is inside {other}"),
    }
    resource
}

/// Lists claims. A claim that is not listed is dead code, which the compiler rejects.
macro_rules! claims {
    ($($claim:ident),* $(,)?) => {
        pub(crate) const CLAIMS: &[crate::admission::AddCasesFn] = &[$($claim),*];
    };
}
pub(crate) use claims;

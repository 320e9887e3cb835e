//! Changes of resources, and what becomes of them: one set of tables for the emulator and for a real API server.

use serde_json::Value;

use crate::apiserver::{AdmissionResult, EmulatedApiServer, EmulationMode, normalize_path};
use crate::samples::{is_readable, load_sample, roundtrip};

/// What happens to a resource.
pub(crate) enum ResourceChange {
    Create(Value),
    Update(Value, Value),
}

impl ResourceChange {
    /// The resource as somebody wants it.
    pub(crate) fn new_resource(&self) -> &Value {
        match self {
            Self::Create(new) | Self::Update(_, new) => new,
        }
    }
}

/// What becomes of a change.
pub(crate) enum ExpectedAdmission {
    /// It is stored.
    Stored,
    /// It is stored, and the types can read it.
    Readable,
    /// It is stored, and the types cannot read it.
    Unreadable,
    /// It is refused, and the answer names the field.
    Rejected { field: String },
    /// It is refused, because the field is not there.
    FieldMissing { field: String },
    /// A rule that stands at a place refuses it in its own words.
    RuleViolated {
        at: &'static str,
        message: &'static str,
    },
}

/// A change and what becomes of it.
pub(crate) struct AdmissionCase {
    /// For whoever reads that it went otherwise.
    pub(crate) name: String,
    pub(crate) change: ResourceChange,
    pub(crate) expected: ExpectedAdmission,
}

impl AdmissionCase {
    /// What the emulator says.
    pub(crate) fn run_emulated(&self, like: EmulationMode) -> AdmissionResult {
        EmulatedApiServer::for_resource(self.change.new_resource()).submit(&self.change, like)
    }

    /// The emulator says what is expected.
    pub(crate) fn check(&self) {
        let answer = self.run_emulated(EmulationMode::Strict);
        let is_as_expected = match (&self.expected, &answer) {
            (ExpectedAdmission::Stored, Ok(_)) => true,
            (ExpectedAdmission::Readable, Ok(stored)) => {
                roundtrip(stored);
                true
            }
            (ExpectedAdmission::Unreadable, Ok(stored)) => !is_readable(stored),
            (ExpectedAdmission::Rejected { field }, Err(wrong)) => {
                wrong.iter().any(|line| line.contains(field.as_str()))
            }
            (ExpectedAdmission::FieldMissing { field }, Err(wrong)) => {
                let line = format!(".{field}: required");
                wrong.iter().any(|wrong| wrong.ends_with(&line))
            }
            (ExpectedAdmission::RuleViolated { at, message }, Err(wrong)) => {
                let broken = (normalize_path(at), *message);
                let told = wrong.iter().filter_map(|line| line.split_once(": "));
                let mut told = told.map(|(path, message)| (normalize_path(path), message));
                told.any(|told| told == broken)
            }
            _ => false,
        };
        assert!(is_as_expected, "{}: {answer:#?}", self.name);
    }
}

/// Samples with one difference each.
#[derive(Default)]
pub(crate) struct AdmissionCases(Vec<AdmissionCase>);

/// Something that holds, as the trials that show it.
pub(crate) type AddCasesFn = fn(&mut AdmissionCases);

impl AdmissionCases {
    /// The trials of these claims.
    pub(crate) fn collect(claims: &[AddCasesFn]) -> Vec<AdmissionCase> {
        let mut trials = Self::default();
        for claim in claims {
            claim(&mut trials);
        }
        trials.0
    }

    /// The values are admitted, and what is stored can be read.
    pub(crate) fn accepts(&mut self, name: &str, pointer: &str, values: &[Value]) {
        for value in values {
            self.add(name, pointer, Some(value), ExpectedAdmission::Readable);
        }
    }

    pub(crate) fn rejects(&mut self, name: &str, pointer: &str, values: &[Value]) {
        for value in values {
            let field = last_name(pointer);
            self.add(name, pointer, Some(value), ExpectedAdmission::Rejected { field });
        }
    }

    /// The values are admitted, but the types cannot read what is stored.
    pub(crate) fn stores_unreadable(&mut self, name: &str, pointer: &str, values: &[Value]) {
        for value in values {
            self.add(name, pointer, Some(value), ExpectedAdmission::Unreadable);
        }
    }

    /// The field must be there.
    pub(crate) fn requires(&mut self, name: &str, pointer: &str) {
        let field = last_name(pointer);
        self.add(name, pointer, None, ExpectedAdmission::FieldMissing { field });
    }

    /// The field may be missing.
    pub(crate) fn allows_missing(&mut self, name: &str, pointer: &str) {
        self.add(name, pointer, None, ExpectedAdmission::Stored);
    }

    fn add(&mut self, name: &str, pointer: &str, value: Option<&Value>, expected: ExpectedAdmission) {
        let what = value.map_or_else(|| "missing".to_owned(), Value::to_string);
        self.0.push(AdmissionCase {
            name: format!("{name}, {pointer} = {what}"),
            change: ResourceChange::Create(sample_with(name, pointer, value.cloned())),
            expected,
        });
    }
}

/// The last part of a JSON pointer that is a name.
fn last_name(pointer: &str) -> String {
    let mut parts = pointer.rsplit('/');
    let named = parts.find(|part| part.parse::<usize>().is_err());
    named.expect("a pointer has a name").to_owned()
}

/// The sample with one value at a JSON pointer, made where it is missing; `None` removes it.
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

/// Makes a test of each claim, and a list of all. A claim left out is code nobody uses, which the compiler refuses.
macro_rules! claims {
    ($($claim:ident),* $(,)?) => {
        pub(crate) const CLAIMS: &[crate::trials::AddCasesFn] = &[$($claim),*];

        mod run_emulated {
            $(
                #[test]
                fn $claim() {
                    let trials = crate::trials::AdmissionCases::collect(&[super::$claim]);
                    assert!(!trials.is_empty());
                    trials.iter().for_each(crate::trials::AdmissionCase::check);
                }
            )*
        }
    };
}
pub(crate) use claims;

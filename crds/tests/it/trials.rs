//! Changes of resources, and what becomes of them: one set of tables for the emulator and for a real API server.

use serde_json::Value;

use crate::apiserver::{Answer, ApiServer, Like, place};
use crate::samples::{is_readable, sample, through_types};

/// What happens to a resource.
pub(crate) enum Change {
    Create(Value),
    Update(Value, Value),
}

impl Change {
    /// The resource as somebody wants it.
    pub(crate) fn wanted(&self) -> &Value {
        match self {
            Self::Create(new) | Self::Update(_, new) => new,
        }
    }
}

/// What becomes of a change.
pub(crate) enum Expected {
    /// It is stored.
    Stored,
    /// It is stored, and the types can read it.
    Readable,
    /// It is stored, and the types cannot read it.
    Unreadable,
    /// It is refused, and the answer names the field.
    Refused { field: String },
    /// It is refused, because the field is not there.
    Missing { field: String },
    /// A rule that stands at a place refuses it in its own words.
    Broken {
        at: &'static str,
        message: &'static str,
    },
}

/// A change and what becomes of it.
pub(crate) struct Trial {
    /// For whoever reads that it went otherwise.
    pub(crate) name: String,
    pub(crate) change: Change,
    pub(crate) expected: Expected,
}

impl Trial {
    /// What the emulator says.
    pub(crate) fn emulated(&self, like: Like) -> Answer {
        ApiServer::of(self.change.wanted()).answer(&self.change, like)
    }

    /// The emulator says what is expected.
    pub(crate) fn check(&self) {
        let answer = self.emulated(Like::Strict);
        let is_as_expected = match (&self.expected, &answer) {
            (Expected::Stored, Ok(_)) => true,
            (Expected::Readable, Ok(stored)) => {
                through_types(stored);
                true
            }
            (Expected::Unreadable, Ok(stored)) => !is_readable(stored),
            (Expected::Refused { field }, Err(wrong)) => {
                wrong.iter().any(|line| line.contains(field.as_str()))
            }
            (Expected::Missing { field }, Err(wrong)) => {
                let line = format!(".{field}: required");
                wrong.iter().any(|wrong| wrong.ends_with(&line))
            }
            (Expected::Broken { at, message }, Err(wrong)) => {
                let broken = (place(at), *message);
                let told = wrong.iter().filter_map(|line| line.split_once(": "));
                let mut told = told.map(|(path, message)| (place(path), message));
                told.any(|told| told == broken)
            }
            _ => false,
        };
        assert!(is_as_expected, "{}: {answer:#?}", self.name);
    }
}

/// Samples with one difference each.
#[derive(Default)]
pub(crate) struct Trials(Vec<Trial>);

/// Something that holds, as the trials that show it.
pub(crate) type Claim = fn(&mut Trials);

impl Trials {
    /// The trials of these claims.
    pub(crate) fn of(claims: &[Claim]) -> Vec<Trial> {
        let mut trials = Self::default();
        for claim in claims {
            claim(&mut trials);
        }
        trials.0
    }

    /// The values are admitted, and what is stored can be read.
    pub(crate) fn accepts(&mut self, name: &str, pointer: &str, values: &[Value]) {
        for value in values {
            self.add(name, pointer, Some(value), Expected::Readable);
        }
    }

    pub(crate) fn refuses(&mut self, name: &str, pointer: &str, values: &[Value]) {
        for value in values {
            let field = field(pointer);
            self.add(name, pointer, Some(value), Expected::Refused { field });
        }
    }

    /// The values are admitted, but the types cannot read what is stored.
    pub(crate) fn lets_pass(&mut self, name: &str, pointer: &str, values: &[Value]) {
        for value in values {
            self.add(name, pointer, Some(value), Expected::Unreadable);
        }
    }

    /// The field must be there.
    pub(crate) fn requires(&mut self, name: &str, pointer: &str) {
        let field = field(pointer);
        self.add(name, pointer, None, Expected::Missing { field });
    }

    /// The field may be missing.
    pub(crate) fn spares(&mut self, name: &str, pointer: &str) {
        self.add(name, pointer, None, Expected::Stored);
    }

    fn add(&mut self, name: &str, pointer: &str, value: Option<&Value>, expected: Expected) {
        let what = value.map_or_else(|| "missing".to_owned(), Value::to_string);
        self.0.push(Trial {
            name: format!("{name}, {pointer} = {what}"),
            change: Change::Create(changed(name, pointer, value.cloned())),
            expected,
        });
    }
}

/// The last part of a JSON pointer that is a name.
fn field(pointer: &str) -> String {
    let mut parts = pointer.rsplit('/');
    let named = parts.find(|part| part.parse::<usize>().is_err());
    named.expect("a pointer has a name").to_owned()
}

/// The sample with one value at a JSON pointer, made where it is missing; `None` removes it.
pub(crate) fn changed(name: &str, pointer: &str, value: Option<Value>) -> Value {
    let mut resource = sample(name);
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
        pub(crate) const CLAIMS: &[crate::trials::Claim] = &[$($claim),*];

        mod emulated {
            $(
                #[test]
                fn $claim() {
                    let trials = crate::trials::Trials::of(&[super::$claim]);
                    assert!(!trials.is_empty());
                    trials.iter().for_each(crate::trials::Trial::check);
                }
            )*
        }
    };
}
pub(crate) use claims;

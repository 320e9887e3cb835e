//! What schemas refuse, and what they let pass although it looks odd.

mod etcd;
mod tasks;

use serde_json::Value;

use crate::apiserver::ApiServer;
use crate::samples::{sample, through_types};

/// The sample with one value at a JSON pointer, made where it is missing; `None` removes it.
fn changed(name: &str, pointer: &str, value: Option<Value>) -> Value {
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

/// The values are admitted, and what is stored can be read.
fn accepts(name: &str, pointer: &str, values: &[Value]) {
    for value in values {
        let resource = changed(name, pointer, Some(value.clone()));
        let outcome = ApiServer::of(&resource).create(&resource);
        let stored = outcome.unwrap_or_else(|wrong| panic!("{pointer} = {value}: {wrong:?}"));
        through_types(&stored);
    }
}

fn refuses(name: &str, pointer: &str, values: &[Value]) {
    for value in values {
        let resource = changed(name, pointer, Some(value.clone()));
        let wrong = ApiServer::of(&resource)
            .create(&resource)
            .expect_err(pointer);
        let field = pointer
            .rsplit('/')
            .find(|part| part.parse::<usize>().is_err())
            .unwrap();
        assert!(
            wrong.iter().any(|line| line.contains(field)),
            "{pointer} = {value}: {wrong:?}"
        );
    }
}

fn requires(name: &str, pointer: &str) {
    let resource = changed(name, pointer, None);
    let wrong = ApiServer::of(&resource)
        .create(&resource)
        .expect_err(pointer);
    assert!(
        wrong.iter().any(|line| line.ends_with(": required")),
        "{pointer}: {wrong:?}"
    );
}

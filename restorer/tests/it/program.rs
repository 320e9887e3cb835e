//! The program itself: exit codes, JSON on standard output, help.

use std::process::{Command, Output};

use serde_json::Value;

use crate::home::Home;

fn run_program(home: &Home, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mainstay-restorer"))
        .args(arguments)
        .env_clear()
        .env("HOME", home.root())
        .output()
        .unwrap()
}

fn run_on_bucket(home: &Home, verb: &str, more: &[&str]) -> (i32, Value) {
    let store = [
        verb,
        "--store-container",
        "bucket",
        "--store-prefix",
        "etcd-main",
        "-o",
        "json",
    ];
    let output = run_program(home, &[&store, more].concat());
    let json = serde_json::from_slice(&output.stdout).unwrap();
    (output.status.code().unwrap(), json)
}

#[test]
fn exit_codes_and_json_agree() {
    let home = Home::from_fixture("gzip-3.5.30");
    for (verb, verdict) in [
        ("list", "shown"),
        ("verify", "restorable"),
        ("inspect", "shown"),
    ] {
        let (code, json) = run_on_bucket(&home, verb, &[]);
        assert_eq!(
            (code, json["verdict"].as_str()),
            (0, Some(verdict)),
            "{verb}"
        );
    }
    let name = home.find_name("Incr-00001545");
    home.modify_object(&name, |bytes| bytes.truncate(100));
    let (code, json) = run_on_bucket(&home, "verify", &[]);
    assert_eq!(
        (code, json["verdict"].as_str()),
        (22, Some("damaged-backup"))
    );
    assert!(json["reason"].as_str().unwrap().contains(&name), "{json}");
    assert!(json["nextStep"].is_string(), "{json}");
    std::fs::remove_file(home.object_path(&name)).unwrap();
    assert_eq!(run_on_bucket(&home, "verify", &[]).0, 21);
    let empty = Home::new();
    for verb in ["list", "verify", "inspect"] {
        assert_eq!(run_on_bucket(&empty, verb, &[]).0, 20, "{verb}");
    }
}

#[test]
fn second_copy_run_of_the_program_has_nothing_to_do() {
    let home = Home::from_fixture("zlib-3.5.16");
    let flags = [
        "copy",
        "--source-store-container",
        "bucket",
        "--source-store-prefix",
        "etcd-main",
        "--store-container",
        "other",
        "-o",
        "json",
    ];
    for verdict in ["copied", "unchanged"] {
        let output = run_program(&home, &flags);
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (output.status.code(), json["verdict"].as_str()),
            (Some(0), Some(verdict))
        );
    }
    assert_eq!(home.list_names("other/v2").len(), 6);
}

#[test]
fn every_command_shows_examples_in_its_help() {
    let home = Home::new();
    for verb in ["list", "verify", "restore", "compact", "copy", "inspect"] {
        let output = run_program(&home, &[verb, "--help"]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.success() && text.contains("Example"),
            "{verb}: {text}"
        );
        assert!(
            text.contains(&format!("mainstay-restorer {verb}")),
            "{verb}: {text}"
        );
    }
}

#[test]
fn mutually_exclusive_flags_are_a_usage_error() {
    let home = Home::new();
    for flags in [
        ["inspect", "--data-dir", "a", "--snapshot", "b"].as_slice(),
        &["verify", "--data-dir", "a", "--all"],
        &["copy", "--max-parallel-copy-operations", "0"],
        &["copy", "--wait-for-final-snapshot-timeout", "soon"],
        &["inspect", "--prefix-depth", "0"],
    ] {
        assert_eq!(
            run_program(&home, flags).status.code(),
            Some(2),
            "{flags:?}"
        );
    }
}

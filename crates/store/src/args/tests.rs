use clap::{CommandFactory, Parser};

use super::*;

#[derive(Debug, Parser)]
struct CopyArgs {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    source: SourceStoreArgs,
}

fn parse(args: &[&str]) -> Result<CopyArgs, clap::Error> {
    CopyArgs::try_parse_from(["copy"].iter().chain(args))
}

#[test]
fn source_and_destination_flags_do_not_conflict() {
    CopyArgs::command().debug_assert();
}

#[test]
fn every_flag_has_help_and_an_environment_variable() {
    for argument in CopyArgs::command().get_arguments() {
        let name = argument.get_id().as_str();
        if name == "help" {
            continue;
        }
        assert!(argument.get_env().is_some(), "--{name} has no variable");
        assert!(argument.get_help().is_some(), "--{name} has no help");
        assert_eq!(argument.get_long(), Some(name));
    }
}

#[test]
fn container_variables_equal_those_of_etcd_backup_restore() {
    let command = CopyArgs::command();
    let variable = |id: &str| {
        let argument = command
            .get_arguments()
            .find(|argument| argument.get_id() == id)
            .unwrap();
        argument.get_env().unwrap().to_str().unwrap().to_owned()
    };
    assert_eq!(variable("store-container"), "STORAGE_CONTAINER");
    assert_eq!(
        variable("source-store-container"),
        "SOURCE_STORAGE_CONTAINER"
    );
}

#[test]
fn no_flags_select_the_default_local_container() {
    let config = parse(&[]).unwrap().store.into_config().unwrap();
    assert_eq!(
        config,
        StoreConfig::new(StorageProvider::Local, DEFAULT_LOCAL_CONTAINER)
    );
}

#[test]
fn source_flags_are_independent_of_the_destination() {
    let args = parse(&[
        "--storage-provider=S3",
        "--store-container=here",
        "--store-prefix=/a/b/",
        "--source-storage-provider=GCS",
        "--source-store-container=there",
        "--source-store-endpoint-override=http://127.0.0.1:9",
        "--source-store-retry-timeout=1h30m",
        "--source-snapstore-temp-directory=/tmp",
    ])
    .unwrap();
    let (store, source) = (
        args.store.into_config().unwrap(),
        args.source.into_config().unwrap(),
    );
    assert_eq!(
        (store.role, store.provider, store.prefix.as_str()),
        (StoreRole::Primary, StorageProvider::S3, "a/b")
    );
    assert_eq!(
        (source.role, source.provider),
        (StoreRole::Source, StorageProvider::Gcs)
    );
    assert_eq!(source.endpoint.unwrap().as_str(), "http://127.0.0.1:9/");
    assert_eq!(source.transfer.retry_timeout, Duration::from_mins(90));
    assert_eq!(store.transfer, TransferConfig::default());
}

#[test]
fn remote_provider_without_container_error_names_flag_and_variable() {
    let error = parse(&["--source-storage-provider=S3"])
        .unwrap()
        .source
        .into_config()
        .unwrap_err();
    let text = error.to_string();
    assert!(text.contains("--source-store-container"), "{text}");
    assert!(text.contains("SOURCE_STORAGE_CONTAINER"), "{text}");
}

#[test]
fn invalid_flag_values_are_refused_while_parsing() {
    for bad in [
        "--storage-provider=s3",
        "--storage-provider=FAILED",
        "--min-chunk-size=5242879",
        "--max-parallel-chunk-uploads=0",
        "--max-parallel-downloads=65",
        "--store-request-timeout=0s",
        "--store-retry-timeout=-5m",
        "--store-retry-timeout=soon",
        "--store-endpoint-override=not a url",
    ] {
        assert!(parse(&[bad]).is_err(), "{bad} was accepted");
    }
}

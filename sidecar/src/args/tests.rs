use clap::CommandFactory;

use super::*;

fn parse(flags: &[&str]) -> SidecarArgs {
    SidecarArgs::parse_from([&["mainstay-sidecar"], flags].concat())
}

#[test]
fn command_line_definition_is_valid() {
    SidecarArgs::command().debug_assert();
}

#[test]
fn defaults_match_etcd_backup_restore() {
    let args = parse(&[]);
    assert_eq!(args.snapshots.schedule.to_string(), "0 */1 * * *");
    let session = args
        .snapshots
        .into_session_config(Duration::from_mins(15), std::num::NonZeroUsize::MIN);
    let tail = session.tail.unwrap();
    assert_eq!(tail.period, Some(Duration::from_secs(20)));
    assert_eq!(tail.limit_bytes, 10 << 20);
    assert_eq!(tail.compression, Compression::Gzip);
}

#[test]
fn delta_period_below_one_second_disables_deltas() {
    let session = |period: &str| {
        let args = parse(&["--delta-snapshot-period", period]);
        args.snapshots
            .into_session_config(Duration::from_mins(15), std::num::NonZeroUsize::MIN)
    };
    assert!(session("0s").tail.is_none());
    assert!(session("900ms").tail.is_none());
    assert!(session("1s").tail.is_some());
}

#[test]
fn etcd_backup_restore_command_line_is_accepted() {
    parse(&[
        "server",
        "--defragmentation-schedule=0 0 */3 * *",
        "--schedule=0 */24 * * *",
        "--garbage-collection-policy=LimitBased",
        "--max-backups=7",
        "--garbage-collection-period=12h",
        "--delta-snapshot-period=5m",
        "--delta-snapshot-memory-limit=104857600",
        "--delta-snapshot-retention-period=0s",
        "--storage-provider=S3",
        "--store-container=bucket",
        "--store-prefix=shoot--a/etcd-main",
        "--insecure-transport=true",
        "--insecure-skip-tls-verify=true",
        "--endpoints=http://etcd-main-local:2379",
        "--service-endpoints=http://etcd-main-client:2379",
        "--etcd-connection-timeout=5m",
        "--etcd-snapshot-timeout=15m",
        "--etcd-defrag-timeout=15m",
        "--snapstore-temp-directory=/var/etcd/data/temp",
        "--data-dir=/var/etcd/data/new.etcd",
        "--restoration-temp-snapshots-dir=/var/etcd/data/restoration.temp",
        "--enable-snapshot-lease-renewal=true",
        "--enable-member-lease-renewal=true",
        "--k8s-heartbeat-duration=10s",
        "--full-snapshot-lease-name=etcd-main-full-snap",
        "--delta-snapshot-lease-name=etcd-main-delta-snap",
        "--embedded-etcd-quota-bytes=8589934592",
        "--max-parallel-chunk-uploads=5",
        "--compress-snapshots=true",
        "--compression-policy=gzip",
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=30m",
        "--reelection-period=5s",
        "--etcd-connection-timeout-leader-election=5s",
        "--server-port=8080",
        "--use-etcd-wrapper=true",
        "--log-level=4",
    ]);
}

#[test]
fn unknown_flag_is_refused() {
    assert!(SidecarArgs::try_parse_from(["mainstay-sidecar", "--schedul=0 * * * *"]).is_err());
}

//! etcdctl of every supported release.

use std::io::Write;
use std::process::{Command, Stdio};

use mainstay_testkit::EtcdRelease;

use super::process::ServerProcess;

mainstay_testkit::each_version! {
    async fn etcdctl_reads_writes_and_watches(release) {
        let server = ServerProcess::start(&["--engine", "memory"]).await;
        let run = |arguments: &[&str]| server.etcdctl(release, arguments);
        assert_eq!(run(&["put", "/r/a", "1"]), "OK\n");
        assert_eq!(run(&["put", "/r/b", "2"]), "OK\n");
        assert_eq!(run(&["put", "/r/a", "3", "--prev-kv"]), "OK\n/r/a\n1\n");
        assert_eq!(run(&["get", "/r/", "--prefix"]), "/r/a\n3\n/r/b\n2\n");
        assert_eq!(run(&["get", "/r/a", "--rev", "2"]), "/r/a\n1\n");
        assert_eq!(run(&["del", "/r/b"]), "1\n");
        assert_eq!(run(&["compaction", "3"]), "compacted revision 3\n");
        let refused = server.try_etcdctl(release, ["get", "/r/a", "--rev", "2"]);
        let errors = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(errors.contains("mvcc: required revision has been compacted"), "{errors}");
        let health = server.try_etcdctl(release, ["endpoint", "health"]);
        assert!(health.status.success(), "{health:?}");
        assert!(run(&["endpoint", "status"]).contains("3.6.0"));
        assert!(run(&["member", "list"]).contains("started, mainstay-server"));
    }
}

#[tokio::test]
async fn etcdctl_runs_interactive_transactions() {
    let server = ServerProcess::start(&["--engine", "memory"]).await;
    let mut etcdctl = Command::new(EtcdRelease::V3_6.directory().join("etcdctl"))
        .env_clear()
        .env("ETCDCTL_ENDPOINTS", server.url())
        .arg("txn")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let script = b"version(\"k\") = \"0\"\n\nput k created\n\nget k\n\n";
    etcdctl.stdin.take().unwrap().write_all(script).unwrap();
    let run = etcdctl.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&run.stdout), "SUCCESS\n\nOK\n");
    assert_eq!(
        server.etcdctl(EtcdRelease::V3_6, ["get", "k"]),
        "k\ncreated\n"
    );
}

#[tokio::test]
async fn etcdctl_grants_and_revokes_leases() {
    let server = ServerProcess::start(&["--engine", "memory"]).await;
    let run = |arguments: &[&str]| server.etcdctl(EtcdRelease::V3_6, arguments);
    let granted = run(&["lease", "grant", "600"]);
    let id = granted.split(' ').nth(1).unwrap().to_owned();
    assert_eq!(granted, format!("lease {id} granted with TTL(600s)\n"));
    run(&["put", "k", "1", "--lease", &id]);
    assert!(run(&["lease", "timetolive", &id, "--keys"]).contains("attached keys([k])"));
    assert_eq!(
        run(&["lease", "keep-alive", &id, "--once"]),
        format!("lease {id} keepalived with TTL(600)\n")
    );
    assert_eq!(
        run(&["lease", "revoke", &id]),
        format!("lease {id} revoked\n")
    );
    assert_eq!(run(&["get", "k"]), "");
}

#[tokio::test]
async fn etcd_serves_the_snapshot_that_etcdctl_saves() {
    let server = ServerProcess::start(&["--engine", "memory"]).await;
    let release = EtcdRelease::V3_6;
    for step in 0..50 {
        server.etcdctl(
            release,
            ["put", &format!("/r/{}", step % 7), &step.to_string()],
        );
    }
    let expected = server.etcdctl(release, ["get", "", "--prefix", "--write-out", "fields"]);
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("snapshot.db");
    let data_dir = scratch.path().join("data");
    server.etcdctl(
        release,
        ["snapshot".as_ref(), "save".as_ref(), file.as_os_str()],
    );
    release.etcdutl([
        "snapshot".as_ref(),
        "restore".as_ref(),
        file.as_os_str(),
        "--data-dir".as_ref(),
        data_dir.as_os_str(),
    ]);
    let options = mainstay_testkit::EtcdOptions::new().data_dir(&data_dir);
    let etcd = mainstay_testkit::EtcdServer::start(release, options).await;
    let found = etcd.etcdctl(["get", "", "--prefix", "--write-out", "fields"]);
    let data = |text: &str| -> Vec<String> {
        let lines = text
            .lines()
            .filter(|line| !line.contains("ID") && !line.contains("RaftTerm"));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(data(&found), data(&expected));
}

#[tokio::test]
async fn metrics_count_requests() {
    let mut server = ServerProcess::start(&["--engine", "memory"]).await;
    server.etcdctl(EtcdRelease::V3_6, ["put", "k", "1"]);
    let metrics = server.metrics().await;
    for line in [
        "mainstay_server_requests_total{code=\"OK\",method=\"Put\"} 1",
        "mainstay_server_revision 2",
    ] {
        assert!(
            metrics.lines().any(|found| found == line),
            "{line} is not in {metrics}"
        );
    }
    assert!(server.terminate(), "SIGTERM is a clean end");
}

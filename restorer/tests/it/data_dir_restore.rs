//! `restore --prefer-data-dir`: a new cluster from the data directory of an old member.

mod live {
    use std::path::Path;
    use std::process::Command;

    use mainstay_testkit::etcd::free_url;
    use mainstay_testkit::{EtcdOptions, EtcdRelease, EtcdServer, each_version};
    use serde_json::Value;

    use crate::home::Home;

    /// Runs `restore` on a directory as a Job does, with the existing directory as the preferred source.
    fn run_restore(home: &Home, data_dir: &Path, url: &str, more: &[&str]) -> (i32, Value) {
        let directory = data_dir.to_str().unwrap();
        let flags = [
            "restore",
            "-o=json",
            "--name=one",
            "--bump-revision=1000000000",
            "--mark-compacted",
        ];
        let output = Command::new(env!("CARGO_BIN_EXE_mainstay-restorer"))
            .args(flags)
            .arg(format!("--data-dir={directory}"))
            .arg(format!("--prefer-data-dir={directory}"))
            .arg(format!("--initial-advertise-peer-urls={url}"))
            .args(more)
            .env_clear()
            .env("HOME", home.root())
            .output()
            .unwrap();
        let json = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code().unwrap(), json)
    }

    /// Creates a data directory with some keys by a server that is stopped; returns its revision and cluster id.
    async fn create_stopped_member(version: EtcdRelease, data_dir: &Path) -> (i64, u64) {
        let options = EtcdOptions::new().name("one").data_dir(data_dir);
        let mut etcd = EtcdServer::start(version, options).await;
        let mut client = etcd.client().await;
        for number in 0..20 {
            let key = format!("key-{number}");
            client.put(key, "value", None).await.unwrap();
        }
        let cluster = etcd.status().await.header().unwrap().cluster_id();
        let revision = etcd.revision().await.0;
        etcd.stop().await;
        (revision, cluster)
    }

    each_version! {
        async fn valid_directory_becomes_a_new_cluster_with_the_same_keys(version) {
            let home = Home::new();
            let data_dir = home.path("data/new.etcd");
            let (revision, old) = create_stopped_member(version, &data_dir).await;
            let url = free_url();
            let (code, report) = run_restore(&home, &data_dir, &url, &[]);
            assert_eq!((code, report["verdict"].as_str()), (0, Some("restored")), "{report}");
            assert_eq!(report["revision"], revision, "{report}");
            assert_eq!(report["startRevision"], revision + 1_000_000_000, "{report}");
            let options = EtcdOptions::new().name("one").data_dir(&data_dir).peer_url(url);
            let etcd = EtcdServer::start(version, options).await;
            assert_eq!(etcd.all_keys().await.len(), 20);
            assert!(etcd.revision().await.0 >= revision + 1_000_000_000);
            let cluster = etcd.status().await.header().unwrap().cluster_id();
            assert_ne!(cluster, old, "members of the old cluster must not be able to join");
            let kept = report["members"][0]["kept"].as_str().unwrap();
            assert!(Path::new(kept).join("member/snap/db").is_file(), "{kept}");
        }
    }

    #[tokio::test]
    async fn directory_older_than_the_backup_is_not_used() {
        let home = Home::from_fixture("gzip-3.5.30");
        let data_dir = home.path("data/new.etcd");
        let (revision, _) = create_stopped_member(EtcdRelease::NEWEST, &data_dir).await;
        let bucket = ["--store-container=bucket", "--store-prefix=etcd-main"];
        let (code, report) = run_restore(&home, &data_dir, &free_url(), &bucket);
        assert_eq!(
            (code, report["verdict"].as_str()),
            (0, Some("restored")),
            "{report}"
        );
        assert!(report["fromDataDir"].is_null(), "{report}");
        assert!(report["revision"].as_i64() > Some(revision), "{report}");
    }

    #[tokio::test]
    async fn volume_of_another_namespace_is_never_written() {
        let home = Home::from_fixture("gzip-3.5.30");
        let data_dir = home.path("data/new.etcd");
        create_stopped_member(EtcdRelease::NEWEST, &data_dir).await;
        mainstay_datadir::write_volume_guard(&data_dir, "other").unwrap();
        let more = [
            "--namespace=shoot",
            "--store-container=bucket",
            "--store-prefix=etcd-main",
        ];
        let (code, report) = run_restore(&home, &data_dir, &free_url(), &more);
        assert_eq!(
            (code, report["verdict"].as_str()),
            (13, Some("wrong-volume")),
            "{report}"
        );
        assert_eq!(
            home.list_names("data")
                .iter()
                .filter(|name| name.contains("before"))
                .count(),
            0
        );
    }

    #[test]
    fn damaged_data_without_a_backup_is_not_restored_from() {
        let home = Home::new();
        let data_dir = home.path("data/new.etcd");
        std::fs::create_dir_all(data_dir.join("member/snap")).unwrap();
        std::fs::write(data_dir.join("member/snap/db"), "no database").unwrap();
        let (code, report) = run_restore(&home, &data_dir, &free_url(), &[]);
        assert_eq!(code, 20, "{report}");
        assert!(data_dir.join("member/snap/db").is_file());
    }
}

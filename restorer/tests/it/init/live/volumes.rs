//! Volumes that belong to another member, cluster or namespace.

use std::fs;

use mainstay_testkit::each_version;
use mainstay_verdict::DataState;

use super::super::testbed::InitTestbed;
use super::{ETCD_VERSION, start_one_member, start_three_members};

each_version! {
    async fn volume_of_another_member_is_refused(version) {
        let stage = InitTestbed::new(version, 3);
        let (mut members, _) = start_three_members(&stage).await;
        members.pop().unwrap().stop();
        members.pop().unwrap().stop();
        let aside = stage.home.path("aside");
        fs::rename(stage.volume(1), &aside).unwrap();
        fs::rename(stage.volume(2), stage.home.path("volume-1")).unwrap();
        fs::rename(&aside, stage.home.path("volume-2")).unwrap();
        for (member, owner) in [(1, "etcd-2"), (2, "etcd-1")] {
            fs::remove_file(stage.config_path(member)).unwrap();
            let before = stage.read_volume(member);
            // Once with another member running, once with none.
            for init_result in [stage.run_init(member, &[]), stage.run_init(member, &[])] {
                assert_eq!(init_result.summary(), (42, "refuse", "wrongVolume"), "{}", init_result.json);
                assert_eq!(init_result.report().data.state, DataState::Foreign);
                let reason = init_result.json["reason"].as_str().unwrap();
                let expected = format!("data belongs to member {owner:?} at ");
                assert!(reason.starts_with(&expected), "{reason}");
                members.pop();
            }
            assert_eq!(stage.read_volume(member), before);
            assert_eq!(stage.read_config(member), None, "etcd would start");
        }
    }

    async fn the_volume_of_another_cluster_is_refused(version) {
        let other = InitTestbed::new(version, 1).with_name_prefix("events");
        let (etcd, _) = start_one_member(&other).await;
        etcd.stop();
        let stage = InitTestbed::new(version, 1);
        stage.write_templates("existing", &[0]);
        fs::remove_dir(stage.volume(0)).unwrap();
        fs::rename(other.volume(0), stage.home.path("volume-0")).unwrap();
        let before = stage.read_volume(0);
        let init_result = stage.run_init(0, &[]);
        assert_eq!(init_result.summary(), (42, "refuse", "wrongVolume"), "{}", init_result.json);
        let reason = init_result.json["reason"].as_str().unwrap();
        assert!(reason.contains("\"events-0\""), "{reason}");
        assert_eq!(stage.read_volume(0), before);
    }
}

#[tokio::test]
async fn volume_of_another_namespace_and_volume_in_use_are_refused() {
    let stage = InitTestbed::new(ETCD_VERSION, 1);
    let (etcd, _) = start_one_member(&stage).await;
    assert_eq!(
        stage.run_init(0, &[]).summary(),
        (42, "refuse", "dataInUse")
    );
    etcd.stop();
    let mark = stage.volume(0).join("safe_guard");
    assert_eq!(fs::read_to_string(&mark).unwrap(), "shoot");
    fs::write(&mark, "another").unwrap();
    let before = stage.read_volume(0);
    let init_result = stage.run_init(0, &[]);
    assert_eq!(
        init_result.summary(),
        (42, "refuse", "wrongVolume"),
        "{}",
        init_result.json
    );
    assert_eq!(stage.read_volume(0), before);
}

#[tokio::test]
async fn renamed_member_starts_at_the_same_url() {
    let stage = InitTestbed::new(ETCD_VERSION, 1);
    let (etcd, _) = start_one_member(&stage).await;
    etcd.stop();
    let stage = stage.with_name_prefix("main");
    stage.write_templates("existing", &[0]);
    let _etcd = stage.init_and_start(0);
    let listed = stage.wait_for_client(0).await.member_list().await.unwrap();
    assert_eq!(listed.members().len(), 1);
}

//! Volumes that are not this member's.

use std::fs;

use mainstay_testkit::each_version;
use mainstay_verdict::DataState;

use super::super::stage::Stage;
use super::{NEW, one_running, three_running};

each_version! {
    async fn the_volume_of_another_member_is_refused(version) {
        let stage = Stage::of(version, 3);
        let (mut members, _) = three_running(&stage).await;
        members.pop().unwrap().stop();
        members.pop().unwrap().stop();
        let aside = stage.home.path("aside");
        fs::rename(stage.volume(1), &aside).unwrap();
        fs::rename(stage.volume(2), stage.home.path("volume-1")).unwrap();
        fs::rename(&aside, stage.home.path("volume-2")).unwrap();
        for (member, owner) in [(1, "etcd-2"), (2, "etcd-1")] {
            fs::remove_file(stage.output(member)).unwrap();
            let before = stage.content(member);
            // With the others there, and with nobody there.
            for said in [stage.init(member, &[]), stage.init(member, &[])] {
                assert_eq!(said.brief(), (42, "refuse", "wrongVolume"), "{}", said.json);
                assert_eq!(said.report().data.state, DataState::Foreign);
                let reason = said.json["reason"].as_str().unwrap();
                let expected = format!("the data is that of the member {owner:?} at ");
                assert!(reason.starts_with(&expected), "{reason}");
                members.pop();
            }
            assert_eq!(stage.content(member), before);
            assert_eq!(stage.written(member), None, "etcd would start");
        }
    }

    async fn the_volume_of_another_cluster_is_refused(version) {
        let other = Stage::of(version, 1).called("events");
        let (etcd, _) = one_running(&other).await;
        etcd.stop();
        let stage = Stage::of(version, 1);
        stage.configure("existing", &[0]);
        fs::remove_dir(stage.volume(0)).unwrap();
        fs::rename(other.volume(0), stage.home.path("volume-0")).unwrap();
        let before = stage.content(0);
        let said = stage.init(0, &[]);
        assert_eq!(said.brief(), (42, "refuse", "wrongVolume"), "{}", said.json);
        let reason = said.json["reason"].as_str().unwrap();
        assert!(reason.contains("\"events-0\""), "{reason}");
        assert_eq!(stage.content(0), before);
    }
}

#[tokio::test]
async fn a_volume_of_another_namespace_and_one_in_use_are_refused() {
    let stage = Stage::of(NEW, 1);
    let (etcd, _) = one_running(&stage).await;
    assert_eq!(stage.init(0, &[]).brief(), (42, "refuse", "dataInUse"));
    etcd.stop();
    let mark = stage.volume(0).join("safe_guard");
    assert_eq!(fs::read_to_string(&mark).unwrap(), "shoot");
    fs::write(&mark, "another").unwrap();
    let before = stage.content(0);
    let said = stage.init(0, &[]);
    assert_eq!(said.brief(), (42, "refuse", "wrongVolume"), "{}", said.json);
    assert_eq!(stage.content(0), before);
}

#[tokio::test]
async fn a_member_may_get_another_name_at_its_address() {
    let stage = Stage::of(NEW, 1);
    let (etcd, _) = one_running(&stage).await;
    etcd.stop();
    let stage = stage.called("main");
    stage.configure("existing", &[0]);
    let _etcd = stage.start(0);
    let listed = stage.client(0).await.member_list().await.unwrap();
    assert_eq!(listed.members().len(), 1);
}

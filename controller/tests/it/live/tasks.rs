//! What tasks do to a cluster: real members are defragmented and led, and what is restored is what was asked for.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::DeleteParams;
use mainstay_crds::Etcd;
use mainstay_crds::ops::TaskState;
use serde_json::json;
use tokio::task::JoinHandle;

use super::cluster::Behind;
use super::kubelet::{Ends, Kubelet};
use super::protection::{code, ended, ops, sidecar};
use super::recovery::{
    ADDRESS, Restored, args, come_back, condition, lose_the_only, lose_two, members_run, of_three,
    over, store,
};
use super::stage::Stage;

/// Bytes of a value, and how many there are: enough to see them go.
const VALUE: usize = 10_000;
const VALUES: usize = 400;

async fn sizes(behind: &Behind) -> Vec<i64> {
    let mut sizes = Vec::new();
    for member in &behind.cluster.members {
        sizes.push(member.status().await.db_size());
    }
    sizes
}

#[tokio::test]
async fn members_are_defragmented_and_led_as_asked() {
    let stage = Stage::set().await;
    let kubelet = Kubelet::play(&stage);
    let behind = Behind::start("main", 3, 3).await;
    behind.settle_in(&kubelet).await;
    let leader = behind.cluster.leader().await;
    let first = &behind.cluster.members[leader];
    let mut client = first.client().await;
    for _ in 0..VALUES {
        let value = vec![b'x'; VALUE];
        client.put("key", value, None).await.expect("a write");
    }
    first.compact(first.revision().await).await;
    let controller = stage.control().await;
    stage.create("main", behind.spec(3)).await;
    stage.settled("main").await;
    let before = sizes(&behind).await;
    ops(&stage, "tidy", json!({ "defragment": {} }), 3600).await;
    let task = ended(&stage, "tidy", TaskState::Succeeded).await;
    let summary = task.status.unwrap().mainstay.unwrap().summary;
    assert_eq!(summary, "3 members were defragmented");
    for (before, after) in before.iter().zip(sizes(&behind).await) {
        assert!(after < before / 2, "{before} became {after}");
    }
    let nobody = json!({ "defragment": { "members": ["nobody"] } });
    ops(&stage, "nobody", nobody, 3600).await;
    let task = ended(&stage, "nobody", TaskState::Failed).await;
    assert_eq!(code(&task), "ERR_INVALID_TASK");
    let leader = behind.cluster.leader().await;
    let heir = behind.cluster.next_to(leader);
    let to = json!({ "moveLeader": { "to": format!("main-{heir}") } });
    ops(&stage, "lead", to, 3600).await;
    ended(&stage, "lead", TaskState::Succeeded).await;
    assert_eq!(behind.cluster.leader_after(leader).await, heir);
    controller.stop().await;
}

/// A cluster of one with a store, a sidecar and a member that answers.
pub(super) async fn backed_up(stage: &Stage, kubelet: &Kubelet) -> (Restored, JoinHandle<()>) {
    let restored = Restored::start("main-0").await;
    let (port, serving) = sidecar().await;
    kubelet.order(|orders| {
        orders
            .addresses
            .insert("main-0".to_owned(), ADDRESS.to_owned());
    });
    let spec = json!({
        "replicas": 1, "etcd": { "clientPort": restored.port },
        "backup": { "store": store(), "port": port },
    });
    stage.create("main", spec).await;
    stage.settled("main").await;
    (restored, serving)
}

/// The coordination document.
async fn document(stage: &Stage) -> BTreeMap<String, String> {
    let found = stage.api::<ConfigMap>().get("main-coordination").await;
    found.expect("a document").data.unwrap_or_default()
}

#[tokio::test]
async fn a_restore_is_tried_before_it_is_done() {
    let stage = Stage::set().await;
    let kubelet = Kubelet::play(&stage);
    let controller = stage.control().await;
    let (_restored, serving) = backed_up(&stage, &kubelet).await;
    let full = "Full-00000000-00000042-1800000000.gz";
    let dry = json!({ "restore": { "fromFull": full, "dryRun": true } });
    ops(&stage, "dry", dry, 3600).await;
    let job = stage.until("main-verify", "there", |_: &Job| true).await;
    let flags = args(&job);
    for flag in [format!("--from={full}"), "--to-revision=42".to_owned()] {
        assert!(flags.contains(&flag), "{flags:?}");
    }
    let entries = document(&stage).await;
    assert!(entries.contains_key("pin.verification"), "{entries:?}");
    kubelet.order(|orders| {
        let words = json!({ "verdict": "restorable", "reaches": 42 });
        orders
            .jobs
            .insert("main-verify".to_owned(), Ends::Well(words));
    });
    let task = ended(&stage, "dry", TaskState::Succeeded).await;
    assert_eq!(task.status.unwrap().mainstay.unwrap().revision, Some(42));
    stage
        .eventually("its Job and its pin go", async || {
            let is_pinned = document(&stage).await.contains_key("pin.verification");
            stage.count::<Job>().await == 0 && !is_pinned
        })
        .await;
    stage.set_of("main", 1).await;
    controller.stop().await;
    serving.abort();
}

#[tokio::test]
async fn a_restore_goes_to_the_moment_asked_for() {
    let stage = Stage::set().await;
    let kubelet = Kubelet::play(&stage);
    let controller = stage.control().await;
    let (restored, serving) = backed_up(&stage, &kubelet).await;
    let moment = "2026-01-31T11:59:00Z";
    let back = json!({ "restore": { "toTime": moment } });
    ops(&stage, "back", back, 3600).await;
    let job = stage.until("main-restore-0", "there", |_: &Job| true).await;
    let flags = args(&job);
    let wanted = format!("--to-time={moment}");
    assert!(flags.contains(&wanted), "{flags:?}");
    let fence = flags.iter().find(|flag| flag.starts_with("--fence="));
    let is_its = |fence: &String| fence.contains("/task-");
    assert!(fence.is_some_and(is_its), "{flags:?}");
    let told = &document(&stage).await["member.main-0"];
    assert!(told.contains("restoring"), "{told}");
    let words = restored.words().await;
    kubelet.order(|orders| {
        orders
            .jobs
            .insert("main-restore-0".to_owned(), Ends::Well(words));
    });
    ended(&stage, "back", TaskState::Succeeded).await;
    over(&stage).await;
    let told = &document(&stage).await["member.main-0"];
    assert!(told.contains("confirmed"), "{told}");
    controller.stop().await;
    serving.abort();
}

#[tokio::test]
async fn a_restore_takes_the_full_snapshot_asked_for_and_nothing_behind_it() {
    let stage = Stage::set().await;
    let kubelet = Kubelet::play(&stage);
    let controller = stage.control().await;
    let (restored, serving) = backed_up(&stage, &kubelet).await;
    let full = "Full-00000000-00000017-1700000000.gz";
    let back = json!({ "restore": { "fromFull": full } });
    ops(&stage, "back", back, 3600).await;
    let job = stage.until("main-restore-0", "there", |_: &Job| true).await;
    let flags = args(&job);
    for flag in [format!("--from={full}"), "--to-revision=17".to_owned()] {
        assert!(flags.contains(&flag), "{flags:?}");
    }
    let elsewhere = ["--to-time", "--prefer-data-dir"];
    let is_elsewhere = |flag: &String| elsewhere.iter().any(|one| flag.starts_with(one));
    assert!(!flags.iter().any(is_elsewhere), "{flags:?}");
    assert!(!members_run(&stage).await, "a pod may use the volume");
    let incident = &document(&stage).await["incident"];
    assert!(incident.contains(full), "{incident}");
    let words = restored.words().await;
    kubelet.order(|orders| {
        orders
            .jobs
            .insert("main-restore-0".to_owned(), Ends::Well(words));
    });
    let task = ended(&stage, "back", TaskState::Succeeded).await;
    let result = task.status.unwrap().mainstay.unwrap();
    let saved = result.safety_snapshot.as_deref();
    assert_eq!(saved, Some("Full-00000000-00000042-1800000000.gz"));
    assert_eq!(result.revision, Some(1), "what the Job says it restored");
    over(&stage).await;
    stage.set_of("main", 1).await;
    controller.stop().await;
    serving.abort();
}

/// Waits until it is told that a quorum is lost and that a person has to say what is done.
pub(super) async fn left_to_people(stage: &Stage) {
    stage
        .until("main", "left to people", |etcd: &Etcd| {
            condition(etcd).is_some_and(|one| one.reason == "ManualRecovery")
        })
        .await;
}

#[tokio::test]
async fn a_lost_quorum_is_recovered_from_the_member_a_person_names() {
    let stage = Arc::new(Stage::set().await);
    let kubelet = Kubelet::play(&stage);
    let mut behind = Behind::start("main", 3, 3).await;
    behind.settle_in(&kubelet).await;
    let controller = stage.control().await;
    let port = of_three(&stage, &behind, "Manual").await;
    lose_two(&mut behind, &kubelet);
    left_to_people(&stage).await;
    let named = |dry: bool| json!({ "recoverQuorum": { "fromMember": "main-2", "dryRun": dry } });
    ops(&stage, "dry", named(true), 3600).await;
    let task = ended(&stage, "dry", TaskState::Succeeded).await;
    let plan = task.status.unwrap().mainstay.unwrap().summary;
    assert!(plan.contains("main-2 is made from"), "{plan}");
    stage.set_of("main", 3).await;
    ops(&stage, "recover", named(false), 3600).await;
    let job = stage.until("main-restore-2", "there", |_: &Job| true).await;
    let flags = args(&job);
    let prefers = |flag: &String| flag.starts_with("--prefer-data-dir=");
    assert!(flags.iter().any(prefers), "{flags:?}");
    drop(behind);
    let restored = Restored::behind("main-2", port).await;
    let words = restored.words().await;
    come_back(&kubelet, words);
    ended(&stage, "recover", TaskState::Succeeded).await;
    controller.stop().await;
}

#[tokio::test]
async fn a_recovery_whose_document_is_lost_stops_its_job_before_a_pod_starts() {
    let stage = Arc::new(Stage::set().await);
    let kubelet = Kubelet::play(&stage);
    lose_the_only(&kubelet);
    let controller = stage.control().await;
    let spec = json!({ "replicas": 1, "backup": { "store": store() } });
    stage.create("main", spec).await;
    let job = stage.until("main-restore-0", "there", |_: &Job| true).await;
    let documents = stage.api::<ConfigMap>();
    documents
        .delete("main-coordination", &DeleteParams::default())
        .await
        .expect("delete the document");
    let jobs = stage.api::<Job>();
    stage
        .eventually("another recovery has another Job", async || {
            let found = jobs.get_opt("main-restore-0").await.expect("ask for a Job");
            let runs = members_run(&stage).await;
            let still = jobs.get_opt("main-restore-0").await.expect("ask for a Job");
            let is_first =
                |one: &Option<Job>| one.as_ref().is_some_and(|one| one.uid() == job.uid());
            assert!(!(runs && is_first(&still)), "a pod may use the volume");
            found.is_some() && !is_first(&found)
        })
        .await;
    assert_eq!(stage.count::<StatefulSet>().await, 1);
    controller.stop().await;
}

//! What says that data is lost without a verdict: a claim whose volume is gone, and etcd that ends again and again.

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};

use super::kubelet::FakeKubelet;
use super::recovery::{RESTORED_ADDRESS, RestoredServer, complete_single_restore, single_member_spec, wait_recovery_over, init_verdict};
use super::stage::TestEnv;
use super::wire::{KillRate, run_with_kills};
use super::witness::WatchRecorder;

/// The Job that restores the only member.
const RESTORE_JOB: &str = "main-restore-0";

/// A cluster of one that is settled, whose member is behind its address.
async fn create_settled_member(stage: &TestEnv, kubelet: &FakeKubelet) -> RestoredServer {
    let restored = RestoredServer::start("main-0").await;
    kubelet.configure(|behavior| {
        behavior
            .pod_addresses
            .insert("main-0".to_owned(), RESTORED_ADDRESS.to_owned());
    });
    let controller = stage.start_controller().await;
    stage.create_etcd("main", single_member_spec(&restored)).await;
    stage.wait_settled("main").await;
    controller.stop().await;
    restored
}

/// What init says about the member from now on.
fn set_init_verdict(kubelet: &FakeKubelet, cause: &str) {
    let lost = init_verdict("main-0", "restoreRequired", cause);
    kubelet.configure(|behavior| {
        behavior.init_verdicts.insert("main-0".to_owned(), lost);
        behavior.ignored_pods.clear();
    });
}

/// The identity of the only claim, while there is one.
async fn find_pvc_uid(stage: &TestEnv) -> Option<String> {
    let claims = stage.api::<PersistentVolumeClaim>();
    let claims = claims.list(&ListParams::default()).await.expect("a list");
    assert!(claims.items.len() <= 1, "{:#?}", claims.items);
    claims.items.first().and_then(ResourceExt::uid)
}

/// Waits until one Job has restored the member, which is well again.
async fn wait_restored_once(
    stage: &TestEnv,
    kubelet: &FakeKubelet,
    (witness, restored): (&WatchRecorder, &RestoredServer),
) {
    stage
        .wait_until("there is a Job", async || witness.count_jobs(RESTORE_JOB) == 1)
        .await;
    complete_single_restore(kubelet, restored.restore_message().await);
    wait_recovery_over(stage).await;
    stage.wait_settled("main").await;
    assert_eq!(witness.count_jobs(RESTORE_JOB), 1);
}

#[tokio::test]
async fn a_claim_whose_volume_is_gone_is_given_up_and_the_new_one_is_restored() {
    replace_lost_pvc(KillRate::Low).await;
}

pub(super) async fn replace_lost_pvc(kill_rate: KillRate) {
    let stage = TestEnv::with_kill_rate(kill_rate).await;
    let kubelet = FakeKubelet::start(&stage);
    let witness = WatchRecorder::start(&stage);
    let restored = create_settled_member(&stage, &kubelet).await;
    // The node and the volume go together; the new pod waits for its volume.
    let gone = find_pvc_uid(&stage).await.expect("a claim");
    kubelet.configure(|behavior| {
        behavior.lost_pvcs.insert(gone.clone());
        behavior.ignored_pods.insert("main-0".to_owned());
    });
    let pods = stage.api::<Pod>();
    let deleted = pods.delete("main-0", &DeleteParams::default()).await;
    deleted.expect("delete a pod");
    let is_another = async || find_pvc_uid(&stage).await.is_some_and(|uid| uid != gone);
    run_with_kills(&stage, "there is another claim", is_another).await;
    let new = find_pvc_uid(&stage).await;
    assert_eq!(witness.count_jobs(RESTORE_JOB), 0, "nobody knows what it holds");

    set_init_verdict(&kubelet, "dataMissing");
    let controller = stage.start_controller().await;
    wait_restored_once(&stage, &kubelet, (&witness, &restored)).await;
    assert_eq!(find_pvc_uid(&stage).await, new, "once was enough");
    controller.stop().await;
}

/// Lets a pod be older than it is. The API server lets nobody change that, so it is changed where it is kept.
async fn backdate_pod(stage: &TestEnv, pod: &Pod, by: SignedDuration) {
    let created = pod.creation_timestamp().expect("a moment").0;
    let key = format!("/registry/pods/{}/{}", stage.namespace, pod.name_any());
    let mut client = stage.server.etcd().client().await;
    let kept = client.get(key.as_str(), None).await.expect("a pod");
    let mut value = kept.kvs()[0].value().to_vec();
    let (from, to) = (encode_seconds(created), encode_seconds(created - by));
    let found = value.windows(from.len()).position(|part| part == from);
    let at = found.expect("the moment, before all others in it");
    value[at..at + from.len()].copy_from_slice(&to);
    client.put(key, value, None).await.expect("a write");
}

/// A moment of this century as protocol buffers have it: field 1, a number of five times seven bits.
fn encode_seconds(moment: jiff::Timestamp) -> [u8; 6] {
    let seconds = u64::try_from(moment.as_second()).expect("a moment of this century");
    let part = |n: u32| u8::try_from((seconds >> (7 * n)) & 0x7f).expect("seven bits");
    let more = |n: u32| part(n) | 0x80;
    [0x08, more(0), more(1), more(2), more(3), part(4)]
}

#[tokio::test]
async fn etcd_that_ends_again_and_again_gets_another_pod_whose_verdict_decides() {
    let stage = TestEnv::start_dedicated().await;
    let kubelet = FakeKubelet::start(&stage);
    let witness = WatchRecorder::start(&stage);
    let restored = create_settled_member(&stage, &kubelet).await;
    let pod = stage.api::<Pod>().get("main-0").await.expect("a pod");
    let uid = pod.uid().expect("an identity");
    set_init_verdict(&kubelet, "dataCorrupt"); // as soon as it is asked again
    kubelet.configure(|behavior| {
        behavior.crashing_pods.insert(uid.clone());
    });
    let is_crashing = |pod: &Pod| {
        let text = serde_json::to_string(&pod.status).expect("a status");
        text.contains("CrashLoopBackOff")
    };
    stage.wait_for("main-0", "in a loop", is_crashing).await;
    let controller = stage.start_controller().await;
    stage.wait_until_idle(&controller).await;
    let young = stage.api::<Pod>().get("main-0").await.expect("a pod");
    assert_eq!(young.uid(), pod.uid(), "it had not had its time");
    assert_eq!(witness.count_jobs(RESTORE_JOB), 0, "a crash proves no loss");

    backdate_pod(&stage, &young, SignedDuration::from_mins(11)).await;
    wait_restored_once(&stage, &kubelet, (&witness, &restored)).await;
    controller.stop().await;
}

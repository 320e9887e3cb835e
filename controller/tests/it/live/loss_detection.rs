//! Signs of lost data without an init verdict: a PVC whose volume is lost, and a crash-looping etcd.

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};

use super::fake_kubelet::FakeKubelet;
use super::fault_injection::{KillRate, run_with_kills};
use super::recovery::{
    RESTORED_ADDRESS, RestoredServer, complete_single_restore, init_verdict, single_member_spec,
    wait_recovery_over,
};
use super::test_env::TestEnv;
use super::watch_recorder::WatchRecorder;

/// The Job that restores the only member.
const RESTORE_JOB: &str = "main-restore-0";

/// Creates a cluster of one, served by a real etcd at the address of its pod, and waits until it is settled.
async fn create_settled_member(stage: &TestEnv, kubelet: &FakeKubelet) -> RestoredServer {
    let restored = RestoredServer::start("main-0").await;
    kubelet.configure(|behavior| {
        behavior
            .pod_addresses
            .insert("main-0".to_owned(), RESTORED_ADDRESS.to_owned());
    });
    let controller = stage.start_controller().await;
    stage
        .create_etcd("main", single_member_spec(&restored))
        .await;
    stage.wait_settled("main").await;
    controller.stop().await;
    restored
}

/// Sets the verdict of init for the member from now on.
fn set_init_verdict(kubelet: &FakeKubelet, cause: &str) {
    let lost = init_verdict("main-0", "restoreRequired", cause);
    kubelet.configure(|behavior| {
        behavior.init_verdicts.insert("main-0".to_owned(), lost);
        behavior.ignored_pods.clear();
    });
}

/// UID of the only PVC, while one exists.
async fn find_pvc_uid(stage: &TestEnv) -> Option<String> {
    let pvcs = stage.api::<PersistentVolumeClaim>();
    let pvcs = pvcs.list(&ListParams::default()).await.expect("a list");
    assert!(pvcs.items.len() <= 1, "{:#?}", pvcs.items);
    pvcs.items.first().and_then(ResourceExt::uid)
}

/// Waits until exactly one Job has restored the member and the cluster is settled.
async fn wait_restored_once(
    stage: &TestEnv,
    kubelet: &FakeKubelet,
    (recorder, restored): (&WatchRecorder, &RestoredServer),
) {
    stage
        .wait_until("the Job exists", async || {
            recorder.count_jobs(RESTORE_JOB) == 1
        })
        .await;
    complete_single_restore(kubelet, restored.restore_message().await);
    wait_recovery_over(stage).await;
    stage.wait_settled("main").await;
    assert_eq!(recorder.count_jobs(RESTORE_JOB), 1);
}

#[tokio::test]
async fn pvc_with_a_lost_volume_is_deleted_and_the_new_one_is_restored() {
    replace_lost_pvc(KillRate::Low).await;
}

pub(super) async fn replace_lost_pvc(kill_rate: KillRate) {
    let stage = TestEnv::with_kill_rate(kill_rate).await;
    let kubelet = FakeKubelet::start(&stage);
    let recorder = WatchRecorder::start(&stage);
    let restored = create_settled_member(&stage, &kubelet).await;
    // The node is lost together with its volume; the new pod stays pending without a volume.
    let gone = find_pvc_uid(&stage).await.expect("a PVC");
    kubelet.configure(|behavior| {
        behavior.lost_pvcs.insert(gone.clone());
        behavior.ignored_pods.insert("main-0".to_owned());
    });
    let pods = stage.api::<Pod>();
    let deleted = pods.delete("main-0", &DeleteParams::default()).await;
    deleted.expect("delete a pod");
    let is_replaced = async || find_pvc_uid(&stage).await.is_some_and(|uid| uid != gone);
    run_with_kills(&stage, "the PVC is replaced", is_replaced).await;
    let new = find_pvc_uid(&stage).await;
    assert_eq!(
        recorder.count_jobs(RESTORE_JOB),
        0,
        "no restore before init has checked the volume"
    );

    set_init_verdict(&kubelet, "dataMissing");
    let controller = stage.start_controller().await;
    wait_restored_once(&stage, &kubelet, (&recorder, &restored)).await;
    assert_eq!(
        find_pvc_uid(&stage).await,
        new,
        "the PVC was replaced twice"
    );
    controller.stop().await;
}

/// Makes a pod older. The API server rejects changes of the creation time, so this edits the object in its etcd.
async fn backdate_pod(stage: &TestEnv, pod: &Pod, by: SignedDuration) {
    let created = pod.creation_timestamp().expect("a creation time").0;
    let key = format!("/registry/pods/{}/{}", stage.namespace, pod.name_any());
    let mut client = stage.server.etcd().client().await;
    let kept = client.get(key.as_str(), None).await.expect("a pod");
    let mut value = kept.kvs()[0].value().to_vec();
    let (from, to) = (encode_seconds(created), encode_seconds(created - by));
    let found = value.windows(from.len()).position(|part| part == from);
    let at = found.expect("the creation time, before all other times in the object");
    value[at..at + from.len()].copy_from_slice(&to);
    client.put(key, value, None).await.expect("a write");
}

/// A time of this century as protocol buffers encode it: field 1, a varint of five bytes.
fn encode_seconds(moment: jiff::Timestamp) -> [u8; 6] {
    let seconds = u64::try_from(moment.as_second()).expect("a time of this century");
    let part = |n: u32| u8::try_from((seconds >> (7 * n)) & 0x7f).expect("seven bits");
    let more = |n: u32| part(n) | 0x80;
    [0x08, more(0), more(1), more(2), more(3), part(4)]
}

#[tokio::test]
async fn crash_looping_etcd_gets_a_new_pod_whose_verdict_decides() {
    let stage = TestEnv::start_dedicated().await;
    let kubelet = FakeKubelet::start(&stage);
    let recorder = WatchRecorder::start(&stage);
    let restored = create_settled_member(&stage, &kubelet).await;
    let pod = stage.api::<Pod>().get("main-0").await.expect("a pod");
    let uid = pod.uid().expect("a UID");
    set_init_verdict(&kubelet, "dataCorrupt"); // applies to the next pod
    kubelet.configure(|behavior| {
        behavior.crashing_pods.insert(uid.clone());
    });
    let is_crashing = |pod: &Pod| {
        let text = serde_json::to_string(&pod.status).expect("a status");
        text.contains("CrashLoopBackOff")
    };
    stage.wait_for("main-0", "crash-looping", is_crashing).await;
    let controller = stage.start_controller().await;
    stage.wait_until_idle(&controller).await;
    let young = stage.api::<Pod>().get("main-0").await.expect("a pod");
    assert_eq!(young.uid(), pod.uid(), "a young pod may still recover");
    assert_eq!(
        recorder.count_jobs(RESTORE_JOB),
        0,
        "a crash does not prove a loss"
    );

    backdate_pod(&stage, &young, SignedDuration::from_mins(11)).await;
    wait_restored_once(&stage, &kubelet, (&recorder, &restored)).await;
    controller.stop().await;
}

//! What says that data is lost without a verdict: a claim whose volume is gone, and etcd that ends again and again.

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};

use super::kubelet::Kubelet;
use super::recovery::{ADDRESS, Restored, come_back_alone, of_one, over, verdict};
use super::stage::Stage;
use super::wire::{Kills, a_few_writes_at_a_time};
use super::witness::Witness;

/// The Job that restores the only member.
const RESTORE: &str = "main-restore-0";

/// A cluster of one that is settled, whose member is behind its address.
async fn settled(stage: &Stage, kubelet: &Kubelet) -> Restored {
    let restored = Restored::start("main-0").await;
    kubelet.order(|orders| {
        orders
            .addresses
            .insert("main-0".to_owned(), ADDRESS.to_owned());
    });
    let controller = stage.control().await;
    stage.create("main", of_one(&restored)).await;
    stage.settled("main").await;
    controller.stop().await;
    restored
}

/// What init says about the member from now on.
fn say(kubelet: &Kubelet, cause: &str) {
    let lost = verdict("main-0", "restoreRequired", cause);
    kubelet.order(|orders| {
        orders.verdicts.insert("main-0".to_owned(), lost);
        orders.idle.clear();
    });
}

/// The identity of the only claim, while there is one.
async fn claim(stage: &Stage) -> Option<String> {
    let claims = stage.api::<PersistentVolumeClaim>();
    let claims = claims.list(&ListParams::default()).await.expect("a list");
    assert!(claims.items.len() <= 1, "{:#?}", claims.items);
    claims.items.first().and_then(ResourceExt::uid)
}

/// Waits until one Job has restored the member, which is well again.
async fn is_restored_once(
    stage: &Stage,
    kubelet: &Kubelet,
    (witness, restored): (&Witness, &Restored),
) {
    stage
        .eventually("there is a Job", async || witness.count(RESTORE) == 1)
        .await;
    come_back_alone(kubelet, restored.words().await);
    over(stage).await;
    stage.settled("main").await;
    assert_eq!(witness.count(RESTORE), 1);
}

#[tokio::test]
async fn a_claim_whose_volume_is_gone_is_given_up_and_the_new_one_is_restored() {
    replace_a_lost_claim(Kills::Seldom).await;
}

pub(super) async fn replace_a_lost_claim(kills: Kills) {
    let stage = Stage::with(kills).await;
    let kubelet = Kubelet::play(&stage);
    let witness = Witness::of(&stage);
    let restored = settled(&stage, &kubelet).await;
    // The node and the volume go together; the new pod waits for its volume.
    let gone = claim(&stage).await.expect("a claim");
    kubelet.order(|orders| {
        orders.lost.insert(gone.clone());
        orders.idle.insert("main-0".to_owned());
    });
    let pods = stage.api::<Pod>();
    let deleted = pods.delete("main-0", &DeleteParams::default()).await;
    deleted.expect("delete a pod");
    let is_another = async || claim(&stage).await.is_some_and(|uid| uid != gone);
    a_few_writes_at_a_time(&stage, "there is another claim", is_another).await;
    let new = claim(&stage).await;
    assert_eq!(witness.count(RESTORE), 0, "nobody knows what it holds");

    say(&kubelet, "dataMissing");
    let controller = stage.control().await;
    is_restored_once(&stage, &kubelet, (&witness, &restored)).await;
    assert_eq!(claim(&stage).await, new, "once was enough");
    controller.stop().await;
}

/// Lets a pod be older than it is. The API server lets nobody change that, so it is changed where it is kept.
async fn age(stage: &Stage, pod: &Pod, by: SignedDuration) {
    let created = pod.creation_timestamp().expect("a moment").0;
    let key = format!("/registry/pods/{}/{}", stage.namespace, pod.name_any());
    let mut client = stage.server.etcd().client().await;
    let kept = client.get(key.as_str(), None).await.expect("a pod");
    let mut value = kept.kvs()[0].value().to_vec();
    let (from, to) = (seconds(created), seconds(created - by));
    let found = value.windows(from.len()).position(|part| part == from);
    let at = found.expect("the moment, before all others in it");
    value[at..at + from.len()].copy_from_slice(&to);
    client.put(key, value, None).await.expect("a write");
}

/// A moment of this century as protocol buffers have it: field 1, a number of five times seven bits.
fn seconds(moment: jiff::Timestamp) -> [u8; 6] {
    let seconds = u64::try_from(moment.as_second()).expect("a moment of this century");
    let part = |n: u32| u8::try_from((seconds >> (7 * n)) & 0x7f).expect("seven bits");
    let more = |n: u32| part(n) | 0x80;
    [0x08, more(0), more(1), more(2), more(3), part(4)]
}

#[tokio::test]
async fn etcd_that_ends_again_and_again_gets_another_pod_whose_verdict_decides() {
    let stage = Stage::alone().await;
    let kubelet = Kubelet::play(&stage);
    let witness = Witness::of(&stage);
    let restored = settled(&stage, &kubelet).await;
    let pod = stage.api::<Pod>().get("main-0").await.expect("a pod");
    let uid = pod.uid().expect("an identity");
    say(&kubelet, "dataCorrupt"); // as soon as it is asked again
    kubelet.order(|orders| {
        orders.crashing.insert(uid.clone());
    });
    let is_crashing = |pod: &Pod| {
        let text = serde_json::to_string(&pod.status).expect("a status");
        text.contains("CrashLoopBackOff")
    };
    stage.until("main-0", "in a loop", is_crashing).await;
    let controller = stage.control().await;
    stage.at_rest(&controller).await;
    let young = stage.api::<Pod>().get("main-0").await.expect("a pod");
    assert_eq!(young.uid(), pod.uid(), "it had not had its time");
    assert_eq!(witness.count(RESTORE), 0, "a crash proves no loss");

    age(&stage, &young, SignedDuration::from_mins(11)).await;
    is_restored_once(&stage, &kubelet, (&witness, &restored)).await;
    controller.stop().await;
}

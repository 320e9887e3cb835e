//! `make demo`: etcd-mainstay on a real Kubernetes cluster of this machine, from nothing to a disaster and back.
//!
//! Each step says what it does and why, and the end is proven with the hash every live etcd computes over its
//! whole history. `KEEP=1` leaves the cluster running.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use mainstay_crds::{ConditionStatus, ConditionType};
use mainstay_testkit::place::setting;
use mainstay_tests::cluster::managed::{self, Managed, condition};
use mainstay_tests::cluster::member::{content, content_at};
use mainstay_tests::cluster::{
    Cluster, Home, NAMESPACE, Programs, diagnose, down, eventually, install,
};
use mainstay_tests::story::{Ended, Story, say, to_its_end, waiting};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::sleep;

const PROGRAM: &str = "demo";
const PROJECT: &str = "demo";
const NAME: &str = "main";
/// How often the status is looked at.
const POLL: Duration = Duration::from_millis(100);

#[tokio::main]
async fn main() -> ExitCode {
    let home = match Home::of_this_machine() {
        Ok(home) => home,
        Err(error) => {
            let ended = Ended::Failed(error.into());
            ended.explain(PROGRAM);
            return ended.exit_code();
        }
    };
    let ended = Box::pin(to_its_end(tell(&home))).await; // it takes a lot of room
    ended.explain(PROGRAM);
    match end(&home, &ended).await {
        Ok(()) => ended.exit_code(),
        Err(error) => {
            let untidy = Ended::Failed(error);
            untidy.explain(PROGRAM);
            untidy.exit_code()
        }
    }
}

/// Shows what the cluster looks like if the story failed, and takes it down.
async fn end(home: &Home, ended: &Ended) -> anyhow::Result<()> {
    if matches!(ended, Ended::Told) && setting("KEEP").is_some() {
        let kubeconfig = home.kubeconfig();
        return say(&format!(
            "\nThe cluster stays:\n  export KUBECONFIG={}\n  kubectl --namespace {PROJECT} get etcd,pods\n  make cluster-down",
            kubeconfig.display()
        ));
    }
    // Without a cluster there is nothing to show beyond the failure itself.
    if let (Ended::Failed(_), Ok(cluster)) = (ended, Cluster::of(home).await) {
        let state = diagnose(&cluster.client(), PROJECT).await;
        say(&format!("\nThe cluster when it failed:\n{state}")).ok(); // it is taken down in any case
    }
    down(home).await.context("take the cluster down")?;
    let hint = match ended {
        Ended::Told => " KEEP=1 make demo leaves it running.",
        _ => "",
    };
    say(&format!(
        "\nThe cluster is gone, nothing is left behind.{hint}"
    ))
}

async fn tell(home: &Home) -> anyhow::Result<()> {
    let mut story = Story::default();
    let programs = Programs::find()?;
    let demo = prepare(&mut story, home, &programs).await?;
    let etcd = create(&mut story, &demo).await?;
    lose_a_volume(&mut story, &demo, &etcd).await?;
    lose_everything(&mut story, &demo, &etcd).await?;
    story.tell(
        "What to try next",
        "KEEP=1 make demo        the same, and the cluster stays for you to look around\n\
         make demo-local         what the restorer can do, without Kubernetes, in a minute\n\
         docs/install.md         installing it on a cluster of yours\n\
         docs/README.md          every other page, by task",
    )
}

/// Where the story plays.
struct Demo {
    cluster: Cluster,
    kubectl: PathBuf,
}

impl Demo {
    /// Shows what kubectl says.
    async fn kubectl(&self, words: &[&str]) -> anyhow::Result<()> {
        let output = Command::new(&self.kubectl)
            .arg("--kubeconfig")
            .arg(self.cluster.kubeconfig())
            .arg(format!("--namespace={PROJECT}"))
            .args(words)
            .output()
            .await
            .context("run kubectl")?;
        ensure!(
            output.status.success(),
            "kubectl {}: {}",
            words.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        let text = String::from_utf8_lossy(&output.stdout);
        let shown: Vec<String> = text.lines().map(|line| format!("  {line}")).collect();
        say(&format!(
            "\n  $ kubectl {}\n{}",
            words.join(" "),
            shown.join("\n")
        ))
    }
}

/// A cluster with the controller in it.
async fn prepare(story: &mut Story, home: &Home, programs: &Programs) -> anyhow::Result<Demo> {
    story.tell(
        "A Kubernetes cluster",
        "API server, controllers, kubelet, containerd, an S3 server: the real programs, in a world of their own\n\
         on this machine. Images of etcd and of our three programs are put into it without a registry.",
    )?;
    waiting("the cluster", 25)?;
    let this = std::env::current_exe().context("find this program")?;
    let brought = Command::new(this.with_file_name("cluster"))
        .arg("up")
        .env_remove("KUBECONFIG")
        .kill_on_drop(true)
        .status()
        .await;
    ensure!(
        brought.context("run `cluster`")?.success(),
        "the cluster did not come up"
    );

    story.tell(
        "The controller",
        "Installed with its chart, as on any cluster; two replicas, one of which acts.",
    )?;
    say(&format!(
        "  $ helm install etcd-mainstay charts/etcd-mainstay --namespace {NAMESPACE}"
    ))?;
    waiting("two controllers to be ready", 15)?;
    install(&home.kubeconfig(), programs).await?;
    let cluster = Cluster::of(home).await?;
    let demo = Demo {
        cluster,
        kubectl: programs.kubernetes("kubectl"),
    };
    demo.kubectl(&["get", "pods", "--namespace", NAMESPACE])
        .await?;
    Ok(demo)
}

/// An Etcd of three members that is written to and backed up.
async fn create(story: &mut Story, demo: &Demo) -> anyhow::Result<Managed> {
    let spec = managed::spec(PROJECT, NAME, 3);
    story.tell(
        "An etcd that somebody relies on",
        "Three members, a snapshot of what changed every five seconds into the S3 server:",
    )?;
    say(&yaml(&spec)?)?;
    demo.kubectl(&["create", "namespace", PROJECT]).await?;
    let etcd = Managed::create(demo.cluster.client(), PROJECT, NAME, &spec).await?;
    waiting("three members that serve", 20)?;
    follow(&etcd, async { Ok(etcd.settled().await?) }).await?;

    story.tell(
        "Somebody uses it",
        "A thousand writes through its Service; every acknowledged one is remembered.",
    )?;
    let load = etcd.flood().await?;
    load.has_written(1_000).await?;
    let written = load.stop().await?;
    let held = content(&etcd.members(3).await?).await?;
    let newest = written.newest().context("something was written")?;
    ensure!(
        written.missing_from(&held.keys, newest).is_empty(),
        "a write is missing"
    );
    say(&format!(
        "{} writes acknowledged. All three members answer: {held}",
        written.count()
    ))?;
    waiting("a backup", 5)?;
    until_backed_up(&etcd).await?;
    demo.kubectl(&["get", "etcd", "--output", "wide"]).await?;
    demo.kubectl(&["get", "pods,persistentvolumeclaims,leases"])
        .await?;
    Ok(etcd)
}

/// The disaster: a member's volume is deleted under it, while somebody writes.
async fn lose_a_volume(story: &mut Story, demo: &Demo, etcd: &Managed) -> anyhow::Result<()> {
    story.tell(
        "Disaster: a volume is gone",
        "One pod of three is killed and its volume deleted, while somebody writes. The init container of the new pod\n\
         proves that the data is lost and refuses to start etcd under the old identity; the controller replaces the\n\
         member.",
    )?;
    let members = etcd.members(3).await?;
    let before = content(&members).await?;
    say(&format!("before: {before}"))?;
    let load = etcd.load().await?;
    load.has_written(100).await?;
    let [_, lost, _] = &members[..] else {
        anyhow::bail!("there are three members");
    };
    let start = Instant::now();
    etcd.lose_volume(lost).await?;
    waiting("the controller to replace the member", 25)?;
    let whole = async {
        let members = etcd.members_that(3, |member| member != lost).await?;
        etcd.settled().await?;
        Ok(members)
    };
    let members = follow(etcd, whole).await?;
    let took = start.elapsed();
    let written = load.stop().await?;

    story.tell(
        "Proof",
        "The old history is the same on every member, and every acknowledged write is there.",
    )?;
    let same = content_at(&members, before.revision).await?;
    let after = content(&members).await?;
    say(&format!(
        "before: {before}\nagain:  {same}\nnow:    {after}"
    ))?;
    ensure!(same == before, "the history has changed");
    let newest = written.newest().context("something was written")?;
    let missing = written.missing_from(&after.keys, newest);
    ensure!(missing.is_empty(), "acknowledged and lost: {missing:?}");
    say(&format!(
        "Three members again after {:.0} s. {} writes were acknowledged meanwhile and none is missing; \
         the longest pause between two was {:.1} s.",
        took.as_secs_f64(),
        written.count(),
        written.longest_silence().as_secs_f64()
    ))?;
    demo.kubectl(&["get", "etcd", "--output", "wide"]).await
}

/// The great disaster: every pod and every volume is gone, and only the backup is left.
async fn lose_everything(story: &mut Story, demo: &Demo, etcd: &Managed) -> anyhow::Result<()> {
    story.tell(
        "Disaster: all volumes are gone",
        "Nobody writes now, and we wait until the backup holds everything. Then all pods are killed and all volumes\n\
         deleted. The controller proves the loss, says what it would do, and asks: the backup may be older than what\n\
         was lost. We approve.",
    )?;
    let lost = etcd.members(3).await?;
    let before = content(&lost).await?;
    etcd.is_backed_up(before.revision).await?;
    say(&format!("before: {before}"))?;
    let start = Instant::now();
    for member in &lost {
        etcd.lose_volume(member).await?;
    }
    waiting("the controller to prove the loss", 65)?;
    let asked = follow(etcd, async { Ok(etcd.approve_recovery().await?) }).await?;
    say(&format!("The controller asks: {asked}\nWe approve."))?;
    waiting("three members restored from the backup", 35)?;
    let whole = async {
        let is_new = |member: &_| !lost.contains(member);
        let members = etcd.members_that(3, is_new).await?;
        etcd.settled().await?;
        Ok(members)
    };
    let members = follow(etcd, whole).await?;
    let took = start.elapsed();

    story.tell(
        "Proof",
        "Every key is there with its value, its revisions and its version. The revision itself has jumped, beyond\n\
         everything a client may have seen, and the history before it counts as compacted: caches of clients notice\n\
         that they have to read anew. So the hash over the history is another one, and the same on all members.",
    )?;
    let after = content(&members).await?;
    say(&format!("before: {before}\nafter:  {after}"))?;
    ensure!(after.keys == before.keys, "keys are not what they were");
    say(&format!(
        "All {} keys are what they were, {:.0} s after everything was lost.",
        after.keys.len(),
        took.as_secs_f64()
    ))?;
    demo.kubectl(&["get", "etcd", "--output", "wide"]).await
}

/// Tells what the controller says it does, until something else is done.
async fn follow<T>(
    etcd: &Managed,
    done: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    let start = Instant::now();
    let words = async {
        let mut last = String::new();
        loop {
            let status = etcd.get().await.ok().and_then(|etcd| etcd.status);
            let now = status.and_then(|status| status.last_operation);
            let now = now.map(|operation| operation.description);
            if let Some(now) = now.filter(|now| *now != last) {
                say(&format!("  {:>3} s  {now}", start.elapsed().as_secs()))?;
                last = now;
            }
            sleep(POLL).await;
        }
    };
    tokio::select! {
        done = done => done,
        failed = words => failed,
    }
}

/// Waits until the status says that backups are as recent as they should be.
async fn until_backed_up(etcd: &Managed) -> anyhow::Result<()> {
    let is_backed_up = async || {
        let etcd = etcd.get().await.ok()?;
        let ready = condition(&etcd, &ConditionType::BackupReady)?;
        (ready.status == ConditionStatus::True).then_some(())
    };
    eventually("a backup", is_backed_up).await?;
    Ok(())
}

fn yaml(spec: &Value) -> anyhow::Result<String> {
    let etcd = json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1",
        "kind": "Etcd",
        "metadata": {"name": NAME, "namespace": PROJECT},
        "spec": spec,
    });
    let text = serde_norway::to_string(&etcd).context("write the Etcd as YAML")?;
    let lines: Vec<String> = text.lines().map(|line| format!("  {line}")).collect();
    Ok(lines.join("\n"))
}

//! `make demo`: etcd-mainstay on a real Kubernetes cluster of this machine, from nothing to a disaster and back.
//!
//! Each step says what it does and why, and the end is proven with the hash every live etcd computes over its
//! whole history. `KEEP=1` leaves the cluster running.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use mainstay_crds::{ConditionStatus, ConditionType};
use mainstay_testkit::place::env_path;
use mainstay_tests::cluster::managed::{self, ManagedEtcd, find_condition};
use mainstay_tests::cluster::member::{read_key_space, read_key_space_at};
use mainstay_tests::cluster::{
    TestCluster, ClusterHome, CONTROLLER_NAMESPACE, Programs, diagnose, down, eventually, install,
};
use mainstay_tests::story::{DemoOutcome, DemoOutput, print_text, run_to_end, print_wait};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::sleep;

const PROGRAM: &str = "demo";
const DEMO_NAMESPACE: &str = "demo";
const ETCD_NAME: &str = "main";
/// How often the status is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

#[tokio::main]
async fn main() -> ExitCode {
    let home = match ClusterHome::from_env() {
        Ok(home) => home,
        Err(error) => {
            let ended = DemoOutcome::Failed(error.into());
            ended.print_failure(PROGRAM);
            return ended.exit_code();
        }
    };
    let ended = Box::pin(run_to_end(run_demo(&home))).await; // it takes a lot of room
    ended.print_failure(PROGRAM);
    match clean_up(&home, &ended).await {
        Ok(()) => ended.exit_code(),
        Err(error) => {
            let untidy = DemoOutcome::Failed(error);
            untidy.print_failure(PROGRAM);
            untidy.exit_code()
        }
    }
}

/// Shows what the cluster looks like if the story failed, and takes it down.
async fn clean_up(home: &ClusterHome, ended: &DemoOutcome) -> anyhow::Result<()> {
    if matches!(ended, DemoOutcome::Completed) && env_path("KEEP").is_some() {
        let kubeconfig = home.kubeconfig();
        return print_text(&format!(
            "\nThe cluster stays:\n  export KUBECONFIG={}\n  kubectl --namespace {DEMO_NAMESPACE} get etcd,pods\n  make cluster-down",
            kubeconfig.display()
        ));
    }
    // Without a cluster there is nothing to show beyond the failure itself.
    if let (DemoOutcome::Failed(_), Ok(cluster)) = (ended, TestCluster::open_local(home).await) {
        let state = diagnose(&cluster.client(), DEMO_NAMESPACE).await;
        print_text(&format!("\nThe cluster when it failed:\n{state}")).ok(); // it is taken down in any case
    }
    down(home).await.context("take the cluster down")?;
    let hint = match ended {
        DemoOutcome::Completed => " KEEP=1 make demo leaves it running.",
        _ => "",
    };
    print_text(&format!(
        "\nThe cluster is gone, nothing is left behind.{hint}"
    ))
}

async fn run_demo(home: &ClusterHome) -> anyhow::Result<()> {
    let mut story = DemoOutput::default();
    let programs = Programs::find()?;
    let demo = prepare_cluster(&mut story, home, &programs).await?;
    let etcd = create_etcd(&mut story, &demo).await?;
    lose_volume(&mut story, &demo, &etcd).await?;
    lose_everything(&mut story, &demo, &etcd).await?;
    story.print_step(
        "What to try next",
        "KEEP=1 make demo        the same, and the cluster stays for you to look around\n\
         make demo-local         what the restorer can do, without Kubernetes, in a minute\n\
         docs/chart.md           installing it on a cluster of yours\n\
         docs/                   operations, objects, formats, benchmarks",
    )
}

/// Where the story plays.
struct Demo {
    cluster: TestCluster,
    kubectl: PathBuf,
}

impl Demo {
    /// Shows what kubectl says.
    async fn run_kubectl(&self, words: &[&str]) -> anyhow::Result<()> {
        let output = Command::new(&self.kubectl)
            .arg("--kubeconfig")
            .arg(self.cluster.kubeconfig())
            .arg(format!("--namespace={DEMO_NAMESPACE}"))
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
        print_text(&format!(
            "\n  $ kubectl {}\n{}",
            words.join(" "),
            shown.join("\n")
        ))
    }
}

/// A cluster with the controller in it.
async fn prepare_cluster(story: &mut DemoOutput, home: &ClusterHome, programs: &Programs) -> anyhow::Result<Demo> {
    story.print_step(
        "A Kubernetes cluster",
        "API server, controllers, kubelet, containerd, an S3 server: the real programs, in a world of their own\n\
         on this machine. Images of etcd and of our three programs are put into it without a registry.",
    )?;
    print_wait("the cluster", 25)?;
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

    story.print_step(
        "The controller",
        "Installed with its chart, as on any cluster; two replicas, one of which acts.",
    )?;
    print_text(&format!(
        "  $ helm install etcd-mainstay charts/etcd-mainstay --namespace {CONTROLLER_NAMESPACE}"
    ))?;
    print_wait("two controllers to be ready", 15)?;
    install(&home.kubeconfig(), programs).await?;
    let cluster = TestCluster::open_local(home).await?;
    let demo = Demo {
        cluster,
        kubectl: programs.kubernetes_program("kubectl"),
    };
    demo.run_kubectl(&["get", "pods", "--namespace", CONTROLLER_NAMESPACE])
        .await?;
    Ok(demo)
}

/// An Etcd of three members that is written to and backed up.
async fn create_etcd(story: &mut DemoOutput, demo: &Demo) -> anyhow::Result<ManagedEtcd> {
    let spec = managed::etcd_spec(DEMO_NAMESPACE, ETCD_NAME, 3);
    story.print_step(
        "An etcd that somebody relies on",
        "Three members, a snapshot of what changed every five seconds into the S3 server:",
    )?;
    print_text(&to_yaml(&spec)?)?;
    demo.run_kubectl(&["create", "namespace", DEMO_NAMESPACE]).await?;
    let etcd = ManagedEtcd::create(demo.cluster.client(), DEMO_NAMESPACE, ETCD_NAME, &spec).await?;
    print_wait("three members that serve", 20)?;
    print_progress_until(&etcd, async { Ok(etcd.wait_until_settled().await?) }).await?;

    story.print_step(
        "Somebody uses it",
        "A thousand writes through its Service; every acknowledged one is remembered.",
    )?;
    let load = etcd.start_unpaced_load().await?;
    load.wait_for_writes(1_000).await?;
    let written = load.stop().await?;
    let held = read_key_space(&etcd.wait_for_members(3).await?).await?;
    let newest = written.newest_revision().context("something was written")?;
    ensure!(
        written.missing_from(&held.keys, newest).is_empty(),
        "a write is missing"
    );
    print_text(&format!(
        "{} writes acknowledged. All three members answer: {held}",
        written.count()
    ))?;
    print_wait("a backup", 5)?;
    wait_until_backed_up(&etcd).await?;
    demo.run_kubectl(&["get", "etcd", "--output", "wide"]).await?;
    demo.run_kubectl(&["get", "pods,persistentvolumeclaims,leases"])
        .await?;
    Ok(etcd)
}

/// The disaster: a member's volume is deleted under it, while somebody writes.
async fn lose_volume(story: &mut DemoOutput, demo: &Demo, etcd: &ManagedEtcd) -> anyhow::Result<()> {
    story.print_step(
        "Disaster: a volume is gone",
        "One pod of three is killed and its volume deleted, while somebody writes. The init container of the new pod\n\
         proves that the data is lost and refuses to start etcd under the old identity; the controller replaces the\n\
         member.",
    )?;
    let members = etcd.wait_for_members(3).await?;
    let before = read_key_space(&members).await?;
    print_text(&format!("before: {before}"))?;
    let load = etcd.start_load().await?;
    load.wait_for_writes(100).await?;
    let [_, lost, _] = &members[..] else {
        anyhow::bail!("there are three members");
    };
    let start = Instant::now();
    etcd.delete_volume(lost).await?;
    print_wait("the controller to replace the member", 25)?;
    let complete = async {
        let members = etcd.wait_for_members_where(3, |member| member != lost).await?;
        etcd.wait_until_settled().await?;
        Ok(members)
    };
    let members = print_progress_until(etcd, complete).await?;
    let took = start.elapsed();
    let written = load.stop().await?;

    story.print_step(
        "Proof",
        "The old history is the same on every member, and every acknowledged write is there.",
    )?;
    let same = read_key_space_at(&members, before.revision).await?;
    let after = read_key_space(&members).await?;
    print_text(&format!(
        "before: {before}\nagain:  {same}\nnow:    {after}"
    ))?;
    ensure!(same == before, "the history has changed");
    let newest = written.newest_revision().context("something was written")?;
    let missing = written.missing_from(&after.keys, newest);
    ensure!(missing.is_empty(), "acknowledged and lost: {missing:?}");
    print_text(&format!(
        "Three members again after {:.0} s. {} writes were acknowledged meanwhile and none is missing; \
         the longest pause between two was {:.1} s.",
        took.as_secs_f64(),
        written.count(),
        written.longest_gap().as_secs_f64()
    ))?;
    demo.run_kubectl(&["get", "etcd", "--output", "wide"]).await
}

/// The great disaster: every pod and every volume is gone, and only the backup is left.
async fn lose_everything(story: &mut DemoOutput, demo: &Demo, etcd: &ManagedEtcd) -> anyhow::Result<()> {
    story.print_step(
        "Disaster: all volumes are gone",
        "Nobody writes now, and we wait until the backup holds everything. Then all pods are killed and all volumes\n\
         deleted. The controller proves the loss, says what it would do, and asks: the backup may be older than what\n\
         was lost. We approve.",
    )?;
    let lost = etcd.wait_for_members(3).await?;
    let before = read_key_space(&lost).await?;
    etcd.wait_until_backed_up(before.revision).await?;
    print_text(&format!("before: {before}"))?;
    let start = Instant::now();
    for member in &lost {
        etcd.delete_volume(member).await?;
    }
    print_wait("the controller to prove the loss", 65)?;
    let asked = print_progress_until(etcd, async { Ok(etcd.approve_recovery().await?) }).await?;
    print_text(&format!("The controller asks: {asked}\nWe approve."))?;
    print_wait("three members restored from the backup", 35)?;
    let complete = async {
        let is_new = |member: &_| !lost.contains(member);
        let members = etcd.wait_for_members_where(3, is_new).await?;
        etcd.wait_until_settled().await?;
        Ok(members)
    };
    let members = print_progress_until(etcd, complete).await?;
    let took = start.elapsed();

    story.print_step(
        "Proof",
        "Every key is there with its value, its revisions and its version. The revision itself has jumped, beyond\n\
         everything a client may have seen, and the history before it counts as compacted: caches of clients notice\n\
         that they have to read anew. So the hash over the history is another one, and the same on all members.",
    )?;
    let after = read_key_space(&members).await?;
    print_text(&format!("before: {before}\nafter:  {after}"))?;
    ensure!(after.keys == before.keys, "keys are not what they were");
    print_text(&format!(
        "All {} keys are what they were, {:.0} s after everything was lost.",
        after.keys.len(),
        took.as_secs_f64()
    ))?;
    demo.run_kubectl(&["get", "etcd", "--output", "wide"]).await
}

/// Tells what the controller says it does, until something else is done.
async fn print_progress_until<T>(
    etcd: &ManagedEtcd,
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
                print_text(&format!("  {:>3} s  {now}", start.elapsed().as_secs()))?;
                last = now;
            }
            sleep(POLL_INTERVAL).await;
        }
    };
    tokio::select! {
        done = done => done,
        failed = words => failed,
    }
}

/// Waits until the status says that backups are as recent as they should be.
async fn wait_until_backed_up(etcd: &ManagedEtcd) -> anyhow::Result<()> {
    let is_backed_up = async || {
        let etcd = etcd.get().await.ok()?;
        let ready = find_condition(&etcd, &ConditionType::BackupReady)?;
        (ready.status == ConditionStatus::True).then_some(())
    };
    eventually("a backup", is_backed_up).await?;
    Ok(())
}

fn to_yaml(spec: &Value) -> anyhow::Result<String> {
    let etcd = json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1",
        "kind": "Etcd",
        "metadata": {"name": ETCD_NAME, "namespace": DEMO_NAMESPACE},
        "spec": spec,
    });
    let text = serde_norway::to_string(&etcd).context("write the Etcd as YAML")?;
    let lines: Vec<String> = text.lines().map(|line| format!("  {line}")).collect();
    Ok(lines.join("\n"))
}

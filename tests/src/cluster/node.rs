//! Access of tests to the node of this machine's cluster: stops components, drops packets, reads volumes. Everything
//! happens inside the cluster's namespaces.

use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use super::addresses::S3_PORT;
use super::components::ClusterComponent;
use super::home::ClusterHome;
use super::namespaces::find_holder;
use super::run::{RunError, run};

/// Process 1 checks every few milliseconds, and a killed program ends at once.
const DEADLINE: Duration = Duration::from_mins(2);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Distinguishes the rules of tests from those of Kubernetes.
const RULE_COMMENT: &str = "mainstay-cut";

/// Why an operation on the node failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The hold file could not be created or removed.
    #[error("failed to create or remove the hold file of {component}")]
    HoldFile {
        /// The component.
        component: &'static str,
        /// Underlying error.
        source: io::Error,
    },
    /// A component did not stop or start in time.
    #[error("{component} did not stop or start within {DEADLINE:?}")]
    Component {
        /// The component.
        component: &'static str,
    },
    /// A process of a pod was not found or could not be killed.
    #[error("failed to kill {program} of pod {pod}")]
    Program {
        /// Name of the program.
        program: &'static str,
        /// Identity of the pod.
        pod: String,
    },
    /// An iptables rule could not be set, read or removed.
    #[error("failed to change or list iptables rules of the cluster")]
    Rule(#[source] RunError),
}

/// The node, as seen from the machine.
#[derive(Clone, Debug)]
pub struct LocalNode {
    home: ClusterHome,
    /// The ID of the cluster's process 1 on this machine.
    init_pid: i32,
}

impl LocalNode {
    /// The node of a running cluster.
    pub(super) fn open(home: &ClusterHome) -> Option<Self> {
        let init_pid = find_holder(home)?.child()?.pid();
        Some(Self {
            home: home.clone(),
            init_pid,
        })
    }

    /// Kills a component and keeps it stopped.
    pub async fn stop(&self, component: ClusterComponent) -> Result<(), NodeError> {
        let set = File::create(self.home.hold_file(component));
        set.map_err(|source| NodeError::HoldFile {
            component: component.name(),
            source,
        })?;
        self.wait_for_component(component, false).await
    }

    /// Lets a stopped component start again.
    pub async fn start(&self, component: ClusterComponent) -> Result<(), NodeError> {
        match fs::remove_file(self.home.hold_file(component)) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(NodeError::HoldFile {
                    component: component.name(),
                    source,
                });
            }
            _ => {}
        }
        self.wait_for_component(component, true).await
    }

    async fn wait_for_component(
        &self,
        component: ClusterComponent,
        until_running: bool,
    ) -> Result<(), NodeError> {
        let deadline = Instant::now() + DEADLINE;
        while self.home.running_file(component).exists() != until_running {
            if Instant::now() > deadline {
                return Err(NodeError::Component {
                    component: component.name(),
                });
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// The log of a component.
    pub fn read_log(&self, component: ClusterComponent) -> String {
        let text = fs::read(self.home.log_file(component)).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// The path of a volume's data as seen from this machine, mounted or not; `None` if it is not a directory of the
    /// node.
    pub fn volume_directory(&self, volume: &PersistentVolume) -> Option<PathBuf> {
        let path = &volume.spec.as_ref()?.host_path.as_ref()?.path;
        let inside = Path::new(path).strip_prefix("/").ok()?;
        Some(
            Path::new("/proc")
                .join(self.init_pid.to_string())
                .join("root")
                .join(inside),
        )
    }

    /// Kills a process of a pod with SIGKILL.
    pub fn kill_program(&self, program: &'static str, pod: &str) -> Result<(), NodeError> {
        let none = || NodeError::Program {
            program,
            pod: pod.to_owned(),
        };
        let processes = fs::read_dir("/proc").map_err(|_| none())?;
        let ids = processes.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let is_it = |id: &String| {
            let about = |what: &str| fs::read(format!("/proc/{id}/{what}")).unwrap_or_default();
            let has = |text: Vec<u8>, word: &str| String::from_utf8_lossy(&text).contains(word);
            // cgroup names contain the pod's uid with underscores or dashes.
            let groups = about("cgroup");
            has(about("cmdline"), program)
                && (has(groups.clone(), pod) || has(groups, &pod.replace('-', "_")))
        };
        let found = ids.filter(|id| id.parse::<u32>().is_ok()).find(is_it);
        let id = found.and_then(|id| Pid::from_raw(id.parse().ok()?));
        let id = id.ok_or_else(none)?;
        kill_process(id, Signal::KILL).map_err(|_| none())
    }

    /// Drops every packet between two groups of pods, in both directions, until the cut is healed.
    pub async fn cut_network(
        &self,
        some: &[Ipv4Addr],
        others: &[Ipv4Addr],
    ) -> Result<NetworkCut, NodeError> {
        self.insert_rules(drop_rules(some, others)).await
    }

    /// Lets `bytes` of a pod pass to the S3 server and drops all packets after that, until the cut is healed. A larger upload
    /// hangs halfway.
    pub async fn stall_uploads(&self, of: Ipv4Addr, after: u64) -> Result<NetworkCut, NodeError> {
        // Rules are inserted at the front: the last one inserted is matched first.
        let stall = FirewallRule::DropToStore { of };
        self.insert_rules(vec![stall, FirewallRule::AcceptBytes { of, bytes: after }])
            .await
    }

    async fn insert_rules(&self, rules: Vec<FirewallRule>) -> Result<NetworkCut, NodeError> {
        let mut cut = NetworkCut {
            init_pid: self.init_pid,
            rules: Vec::new(),
        };
        for rule in rules {
            let words = rule_arguments(self.init_pid, "--insert", rule);
            run("nsenter", &words).await.map_err(NodeError::Rule)?;
            cut.rules.push(rule);
        }
        Ok(cut)
    }
}

/// Dropped packets between pods. Dropping this value heals the cut.
#[derive(Debug)]
#[must_use = "a cut that is dropped is healed"]
pub struct NetworkCut {
    init_pid: i32,
    rules: Vec<FirewallRule>,
}

impl NetworkCut {
    /// Whether a packet to the S3 server was dropped.
    pub async fn has_dropped_packets(&self) -> Result<bool, NodeError> {
        let words = iptables_arguments(self.init_pid, "--list INPUT --numeric --verbose --exact");
        let list = run("nsenter", &words).await.map_err(NodeError::Rule)?;
        Ok(self.rules.iter().any(|rule| match rule {
            FirewallRule::DropToStore { of } => dropped_packets(&list, *of) > 0,
            _ => false,
        }))
    }

    /// Lets packets pass again.
    pub async fn heal(mut self) -> Result<(), NodeError> {
        while let Some(&rule) = self.rules.last() {
            let words = rule_arguments(self.init_pid, "--delete", rule);
            run("nsenter", &words).await.map_err(NodeError::Rule)?;
            self.rules.pop();
        }
        Ok(())
    }
}

impl Drop for NetworkCut {
    fn drop(&mut self) {
        for &rule in &self.rules {
            // Fails only if the namespaces are gone, and the rule with them.
            Command::new("nsenter")
                .args(rule_arguments(self.init_pid, "--delete", rule))
                .status()
                .ok();
        }
    }
}

/// The packets that pass or are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FirewallRule {
    /// Drops packets from one pod to another.
    DropBetween { from: Ipv4Addr, to: Ipv4Addr },
    /// Drops packets from a pod to the S3 server.
    DropToStore { of: Ipv4Addr },
    /// Accepts this many bytes from a pod to the S3 server.
    AcceptBytes { of: Ipv4Addr, bytes: u64 },
}

fn drop_rules(some: &[Ipv4Addr], others: &[Ipv4Addr]) -> Vec<FirewallRule> {
    let pairs = some
        .iter()
        .flat_map(|&one| others.iter().map(move |&other| (one, other)));
    let distinct = pairs.filter(|(one, other)| one != other);
    distinct
        .flat_map(|(one, other)| {
            [(one, other), (other, one)].map(|(from, to)| FirewallRule::DropBetween { from, to })
        })
        .collect()
}

/// Packets of the bridge pass the FORWARD chain. New rules must come first: an earlier rule accepts packets of established
/// connections.
fn rule_arguments(first: i32, verb: &str, rule: FirewallRule) -> Vec<String> {
    let store = |of| format!("INPUT --source {of} --protocol tcp --destination-port {S3_PORT}");
    let (matches, jump) = match rule {
        FirewallRule::DropBetween { from, to } => {
            let between = format!("FORWARD --source {from} --destination {to}");
            (between, "DROP")
        }
        FirewallRule::DropToStore { of } => (store(of), "DROP"),
        FirewallRule::AcceptBytes { of, bytes } => {
            let quota = format!("{} --match quota --quota {bytes}", store(of));
            (quota, "ACCEPT")
        }
    };
    let rule = format!("{verb} {matches} --match comment --comment {RULE_COMMENT} --jump {jump}");
    iptables_arguments(first, &rule)
}

/// Arguments of `nsenter` for an iptables command in the namespaces of process `first`; the command has no quotes.
fn iptables_arguments(first: i32, command: &str) -> Vec<String> {
    let line = format!("--target {first} --mount --net -- iptables --wait {command}");
    line.split(' ').map(str::to_owned).collect()
}

/// Number of dropped packets of a pod, from a list with the columns packets, bytes, target, protocol, options, in, out, source.
fn dropped_packets(list: &str, of: Ipv4Addr) -> u64 {
    let source = of.to_string();
    let lines = list.lines().filter(|line| line.contains(RULE_COMMENT));
    let columns = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut counts = columns.filter_map(|columns| {
        let is_it = columns.get(2) == Some(&"DROP") && columns.get(7) == Some(&source.as_str());
        is_it.then(|| columns.first()?.parse::<u64>().ok())?
    });
    counts.next().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Ipv4Addr = Ipv4Addr::new(198, 18, 16, 2);
    const TWO: Ipv4Addr = Ipv4Addr::new(198, 18, 16, 3);

    #[test]
    fn partition_drops_both_directions_but_not_a_pod_to_itself() {
        let both =
            [(ONE, TWO), (TWO, ONE)].map(|(from, to)| FirewallRule::DropBetween { from, to });
        assert_eq!(drop_rules(&[ONE], &[ONE, TWO]), both);
    }

    #[test]
    fn drop_rule_is_set_in_the_node_namespace_with_both_addresses() {
        let line = rule_arguments(
            42,
            "--insert",
            FirewallRule::DropBetween { from: ONE, to: TWO },
        )
        .join(" ");
        assert!(
            line.starts_with("--target 42 --mount --net -- iptables "),
            "{line}"
        );
        assert!(
            line.contains("--source 198.18.16.2 --destination 198.18.16.3 "),
            "{line}"
        );
    }

    #[test]
    fn dropped_packets_are_read_from_the_rule_of_the_pod() {
        let list = "Chain INPUT (policy ACCEPT 9 packets, 9 bytes)\n\
            \x20   pkts      bytes target     prot opt in     out     source               destination\n\
            \x20      3      464 ACCEPT     6    --  *      *       198.18.16.2          0.0.0.0/0            tcp dpt:8333 quota: 500 bytes /* mainstay-cut */\n\
            \x20      7       52 DROP       6    --  *      *       198.18.16.2          0.0.0.0/0            tcp dpt:8333 /* mainstay-cut */\n";
        assert_eq!(dropped_packets(list, ONE), 7);
        assert_eq!(dropped_packets(list, TWO), 0);
    }
}

//! Runs the controller against an API server with the Kubernetes controllers and a fake kubelet. Tests set the status of
//! pods; pod addresses lead to real etcd servers where a test needs members.

mod adoption;
mod apiserver_outage;
mod backup_jobs;
mod blocked_recovery;
mod cluster;
mod compaction;
mod diagnosis;
mod events;
mod fake_kubelet;
mod fault_injection;
mod faults;
mod fencing;
mod job_failover;
mod leader_election;
mod lifecycle;
mod loss_detection;
mod manual_changes;
mod pins;
mod preconditions;
mod quiescence;
mod readiness;
mod recovery;
mod restore_progress;
mod rolling;
mod scale_in;
mod scale_out;
mod soak;
mod steady_state;
mod tasks;
mod test_env;
mod tls;
mod unlabeled_pvcs;
mod volume_expansion;
mod watch_recorder;

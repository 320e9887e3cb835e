//! Runs the controller against an API server with the Kubernetes controllers and a fake kubelet. Tests set the status of
//! pods; pod addresses lead to real etcd servers where a test needs members.

mod adoption;
mod job_failover;
mod cluster;
mod diagnosis;
mod events;
mod faults;
mod fencing;
mod compaction;
mod preconditions;
mod manual_changes;
mod quiescence;
mod scale_out;
mod fake_kubelet;
mod leader_election;
mod scale_in;
mod lifecycle;
mod apiserver_outage;
mod pins;
mod backup_jobs;
mod readiness;
mod recovery;
mod steady_state;
mod rolling;
mod loss_detection;
mod soak;
mod test_env;
mod tasks;
mod blocked_recovery;
mod tls;
mod unlabeled_pvcs;
mod volume_expansion;
mod restore_progress;
mod fault_injection;
mod watch_recorder;

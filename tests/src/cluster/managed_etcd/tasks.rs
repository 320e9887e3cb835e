//! One-time tasks of an Etcd: operations, and copies of its backup.

use kube::Resource;
use kube::api::{Api, PostParams};
use mainstay_crds::copy::EtcdCopyBackupsTask;
use mainstay_crds::ops::{EtcdOpsTask, TaskState};
use mainstay_crds::{ConditionStatus, ConditionType};
use serde_json::{Value, json};

use super::{ManagedEtcd, ManagedEtcdError, eventually};

impl ManagedEtcd {
    /// Creates an operation task and waits until it has finished. Returns its state and message.
    pub async fn run_ops_task(
        &self,
        name: &str,
        config: Value,
    ) -> Result<(TaskState, String), ManagedEtcdError> {
        let task = json!({
            "apiVersion": "druid.gardener.cloud/v1alpha1",
            "kind": "EtcdOpsTask",
            "metadata": {"name": name},
            "spec": {"etcdName": self.name, "config": config},
        });
        let tasks = self.create_task::<EtcdOpsTask>(task).await?;
        let ended = async || {
            let status = tasks.get(name).await.ok()?.status?;
            let state = status.state.filter(|state| state.is_final())?;
            let said = serde_json::to_string(&(status.mainstay, status.last_errors));
            Some((state, said.unwrap_or_default()))
        };
        Ok(eventually(&format!("task {name} to finish"), ended).await?)
    }

    /// Copies the backup to another prefix of the cluster's store, and waits until the copy is complete.
    pub async fn copy_backup(&self, name: &str, prefix: &str) -> Result<(), ManagedEtcdError> {
        let source = self.get().await?.spec.backup.store;
        let mut target = source.clone();
        if let Some(target) = &mut target {
            prefix.clone_into(&mut target.prefix);
        }
        let task = json!({
            "apiVersion": "druid.gardener.cloud/v1alpha1",
            "kind": "EtcdCopyBackupsTask",
            "metadata": {"name": name},
            "spec": {"sourceStore": source, "targetStore": target},
        });
        let tasks = self.create_task::<EtcdCopyBackupsTask>(task).await?;
        let is_done = async || {
            let conditions = tasks.get(name).await.ok()?.status?.conditions?;
            let succeeded = |one: &mainstay_crds::Condition| {
                one.type_ == ConditionType::Succeeded && one.status == ConditionStatus::True
            };
            conditions.iter().any(succeeded).then_some(())
        };
        Ok(eventually("the copy of the backup to complete", is_done).await?)
    }

    async fn create_task<K>(&self, task: Value) -> Result<Api<K>, ManagedEtcdError>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
            + serde::Serialize
            + serde::de::DeserializeOwned
            + Clone
            + std::fmt::Debug,
    {
        let tasks = self.api::<K>();
        let task = serde_json::from_value(task).map_err(kube::Error::SerdeError);
        let task = task.map_err(self.api_error("write a task for"))?;
        let created = tasks.create(&PostParams::default(), &task).await;
        created.map_err(self.api_error("create a task for"))?;
        Ok(tasks)
    }
}

//! `set-aside`: renames a data directory, so that its member starts without data.

use std::path::PathBuf;

use clap::Args;
use mainstay_datadir::VolumeFence;
use mainstay_verdict::Verdict;

use crate::cli::CommandContext;
use crate::failure::CommandFailure;
use crate::health::refuse_foreign_volume;
use crate::outcome::CommandOutcome;

/// Flags of `set-aside`.
#[derive(Debug, Args)]
#[command(
    long_about = "Renames a data directory to <DIR>.before-<time>, so that its member starts without data and joins its \
        cluster again. Nothing is deleted. The command refuses a directory that etcd uses, and a volume of another \
        namespace.",
    after_help = "Example:\n  mainstay-restorer set-aside -d /var/etcd/data/new.etcd"
)]
pub struct SetAsideArgs {
    /// Data directory to rename
    #[arg(short, long, value_name = "DIR", default_value = "default.etcd")]
    #[arg(env = "MAINSTAY_DATA_DIR")]
    pub data_dir: PathBuf,

    /// Namespace of the volume; a volume of another namespace is refused
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE")]
    pub(crate) namespace: Option<String>,

    /// Identifies this writer on the volume; a later writer fences it off
    ///
    /// The directory is not renamed once a later writer has recorded its token on the volume.
    #[arg(long, value_name = "TOKEN", env = "MAINSTAY_FENCE")]
    pub(crate) fence: Option<String>,
}

/// Renames the directory.
pub(crate) async fn run(
    args: SetAsideArgs,
    context: &CommandContext,
) -> Result<CommandOutcome, CommandFailure> {
    let SetAsideArgs {
        data_dir,
        namespace,
        fence,
    } = args;
    let now = context.now;
    let shown = data_dir.display().to_string();
    let work = tokio::task::spawn_blocking(move || {
        // Before the fence, which already writes to the volume.
        refuse_foreign_volume(&data_dir, namespace.as_deref())?;
        if let Some(token) = fence {
            // A writer that hangs must not rename the directory that a later writer has restored.
            VolumeFence::acquire(&data_dir, &token)?.check()?;
        }
        Ok::<_, CommandFailure>(mainstay_datadir::rename_to_previous(&data_dir, now)?)
    });
    let kept = work
        .await
        .map_err(|error| CommandFailure::new(Verdict::Failed, &error))??;
    let details = serde_json::json!({ "kept": kept });
    Ok(match kept {
        Some(kept) => {
            let text = format!("renamed {shown} to {}", kept.display());
            CommandOutcome::new(Verdict::Ready, text, &details)
        }
        None => CommandOutcome::new(
            Verdict::Unchanged,
            format!("data directory {shown} is missing or empty"),
            &details,
        ),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use jiff::Timestamp;
    use mainstay_datadir::write_volume_guard;
    use mainstay_store::Environment;

    use super::*;

    fn context() -> CommandContext {
        CommandContext {
            now: Timestamp::UNIX_EPOCH,
            environment: Environment::default(),
        }
    }

    #[tokio::test]
    async fn previous_data_directory_is_kept_and_a_second_run_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let data_dir = folder.path().join("new.etcd");
        fs::create_dir_all(data_dir.join("member")).unwrap();
        let args = || SetAsideArgs {
            data_dir: data_dir.clone(),
            namespace: Some("shoot".to_owned()),
            fence: Some("5/a1b2/1".to_owned()),
        };
        let first = run(args(), &context()).await.unwrap();
        assert_eq!(first.verdict(), Verdict::Ready);
        assert!(
            folder
                .path()
                .join("new.etcd.before-19700101T000000Z/member")
                .is_dir()
        );
        let second = run(args(), &context()).await.unwrap();
        assert_eq!(second.verdict(), Verdict::Unchanged);
    }

    #[tokio::test]
    async fn volume_of_another_namespace_is_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        let data_dir = folder.path().join("new.etcd");
        fs::create_dir_all(data_dir.join("member")).unwrap();
        write_volume_guard(&data_dir, "other").unwrap();
        let args = SetAsideArgs {
            data_dir: data_dir.clone(),
            namespace: Some("shoot".to_owned()),
            fence: Some("5/a1b2/1".to_owned()),
        };
        let failure = run(args, &context()).await.unwrap_err();
        assert_eq!(failure.verdict(), Verdict::WrongVolume);
        assert!(data_dir.join("member").is_dir());
    }
}

//! Certificates: whose are trusted, and what happens with others.

use std::time::{Duration, Instant};

use rcgen::{CertificateParams, KeyPair};
use steward_store::{Class, Environment, Provider, SnapStore, StoreConfig};

use crate::data::{brisk, noise, put};
use crate::s3::secret_directory;
use crate::servers::{Certificate, Weed};

fn self_signed() -> Certificate {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["127.0.0.1".to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    Certificate {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_authority_is_trusted_when_told_and_refused_at_once_when_not() {
    let certificate = self_signed();
    let weed = Weed::start_tls(&certificate).await;
    let open = |name: &str, extra: &[(&str, &str)]| {
        let mut fields = vec![
            ("region", "us-east-1"),
            ("accessKeyID", Weed::KEY_ID),
            ("secretAccessKey", Weed::SECRET),
        ];
        fields.extend(extra);
        let parent = weed.server.directory.path().join(name);
        let directory = secret_directory(&parent, &fields);
        let env = Environment::from_iter([("AWS_APPLICATION_CREDENTIALS", directory)]);
        let config = StoreConfig {
            endpoint: Some(weed.endpoint.parse().unwrap()),
            effort: brisk(),
            ..StoreConfig::new(Provider::S3, Weed::BUCKET)
        };
        SnapStore::open(&config, &env)
    };

    let stranger = open("stranger", &[]).unwrap();
    let started = Instant::now();
    let error = stranger.list("v2").await.unwrap_err();
    assert_eq!(error.class(), Class::Invalid, "{error:?}");
    assert!(
        started.elapsed() < Duration::from_secs(10),
        "an untrusted server was tried again"
    );

    let trusting = open("trusting", &[("trustedCaCert", &certificate.certificate)]).unwrap();
    put(&trusting, "v2/Full-1", &noise(1, 10)).await;

    let careless = open("careless", &[("insecureSkipVerify", "true")]).unwrap();
    assert_eq!(careless.list("v2").await.unwrap().len(), 1);

    assert!(open("garbled", &[("trustedCaCert", "not a certificate")]).is_err());
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which server has a bucket, and by what right it is asked: from the variables that other programs read, too.

use rusty_s3::{Bucket, Credentials, UrlStyle};
use url::Url;

use crate::error::StoreError;

/// The region of a server that has none.
const REGION: &str = "us-east-1";

/// The first of these variables that is set and not empty.
fn variable(find: &dyn Fn(&str) -> Option<String>, names: &[&str]) -> Option<String> {
    names.iter().filter_map(|name| find(name)).find(|value| !value.trim().is_empty())
}

/// A bucket on its server, and the credentials, which are found in variables: AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, without which the
/// server is Amazon's, AWS_REGION or AWS_DEFAULT_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN.
///
/// # Errors
/// [`StoreError::Bucket`].
pub(super) fn bucket(
    name: &str,
    find: &dyn Fn(&str) -> Option<String>,
) -> Result<(Bucket, Credentials), StoreError> {
    let bad = |what: String| StoreError::Bucket { address: format!("s3://{name}"), what };
    let region = variable(find, &["AWS_REGION", "AWS_DEFAULT_REGION"]).unwrap_or_else(|| REGION.to_owned());
    let endpoint = variable(find, &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]);
    // A certificate is of one level below the server's name.
    let style = match &endpoint {
        None if !name.contains('.') => UrlStyle::VirtualHost,
        _ => UrlStyle::Path,
    };
    let endpoint = endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
    let url: Url =
        endpoint.parse().map_err(|error| bad(format!("{endpoint} (AWS_ENDPOINT_URL) is no URL: {error}")))?;
    let bucket = Bucket::new(url, style, name.to_owned(), region)
        .map_err(|error| bad(format!("{endpoint} is no server's: {error}")))?;
    let wanted = |name: &'static str| {
        variable(find, &[name]).ok_or_else(|| {
            bad(format!("{name} is not set, and AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY have to be"))
        })
    };
    let (key, secret) = (wanted("AWS_ACCESS_KEY_ID")?, wanted("AWS_SECRET_ACCESS_KEY")?);
    let credentials = match variable(find, &["AWS_SESSION_TOKEN"]) {
        None => Credentials::new(key, secret),
        Some(token) => Credentials::new_with_token(key, secret, token),
    };
    Ok((bucket, credentials))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(name: &str, set: &[(&str, &str)]) -> Result<String, String> {
        let keys = [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "secret")];
        let find = |name: &str| {
            let set = set.iter().chain(&keys).find(|(set, _)| *set == name);
            set.map(|(_, value)| (*value).to_owned())
        };
        bucket(name, &find)
            .map(|(bucket, _)| bucket.base_url().to_string())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn servers_are_amazons_unless_another_one_is_named() {
        assert_eq!(url("b", &[]).unwrap(), "https://b.s3.us-east-1.amazonaws.com/");
        assert_eq!(
            url("b.c", &[("AWS_REGION", "eu-west-1")]).unwrap(),
            "https://s3.eu-west-1.amazonaws.com/b.c/"
        );
        let own = ("AWS_ENDPOINT_URL", "http://127.0.0.1:9000");
        assert_eq!(url("b", &[own]).unwrap(), "http://127.0.0.1:9000/b/");
        let s3 = ("AWS_ENDPOINT_URL_S3", "https://store.example/s3");
        assert_eq!(url("b", &[own, s3]).unwrap(), "https://store.example/s3/b/");
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let unset = bucket("b", &|_| None).unwrap_err().to_string();
        assert!(unset.contains("s3://b") && unset.contains("AWS_ACCESS_KEY_ID is not set"), "{unset}");
        for wrong in ["127.0.0.1:9000", "ftp://host", "nonsense"] {
            let error = url("b", &[("AWS_ENDPOINT_URL", wrong)]).unwrap_err();
            assert!(error.contains(wrong), "{error}");
        }
        // A secret is not printed.
        let find =
            |name: &str| Some(if name == "AWS_ENDPOINT_URL_S3" { "http://host" } else { name }.to_owned());
        assert!(!format!("{:?}", bucket("b", &find).unwrap()).contains("SECRET"));
    }
}

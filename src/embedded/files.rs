//! The configuration files of an embedded server.

use std::io;
use std::path::Path;

use super::Options;

/// Writes `config.xml`, `users.xml` and the two merged documents into the data folder, in place of those of a start
/// before.
pub fn write(data_dir: &Path, http_port: u16, tcp_port: u16, options: &Options) -> io::Result<()> {
    std::fs::write(data_dir.join("config.xml"), server_xml(http_port, tcp_port, options))?;
    std::fs::write(data_dir.join("users.xml"), users_xml(options))?;
    merged(data_dir, "config.d", options.server_config.as_deref())?;
    merged(data_dir, "users.d", options.users_config.as_deref())
}

/// ClickHouse merges `<name>.d/*.xml` over `<name>.xml`.
fn merged(data_dir: &Path, folder: &str, text: Option<&str>) -> io::Result<()> {
    let folder = data_dir.join(folder);
    let path = folder.join("given.xml");
    match text {
        Some(text) => {
            std::fs::create_dir_all(&folder)?;
            std::fs::write(path, text)
        }
        None if path.exists() => std::fs::remove_file(path),
        None => Ok(()),
    }
}

fn server_xml(http_port: u16, tcp_port: u16, options: &Options) -> String {
    let memory = options
        .memory_bytes_max
        .map(|bytes| format!("    <max_server_memory_usage>{bytes}</max_server_memory_usage>\n"))
        .unwrap_or_default();
    format!(
        "<clickhouse>
    <logger><level>warning</level><console>1</console></logger>
    <listen_host>127.0.0.1</listen_host>
    <http_port>{http_port}</http_port>
    <tcp_port>{tcp_port}</tcp_port>
    <path>data/</path>
    <tmp_path>data/tmp/</tmp_path>
    <user_files_path>data/user_files/</user_files_path>
    <format_schema_path>data/format_schemas/</format_schema_path>
    <users_config>users.xml</users_config>
    <default_profile>default</default_profile>
    <default_database>default</default_database>
    <mark_cache_size>268435456</mark_cache_size>
{memory}</clickhouse>
"
    )
}

/// `implicit_select` is on in the wheel, which turns syntax errors into other errors than a server gives.
fn users_xml(options: &Options) -> String {
    let threads =
        options.threads_max.map(|threads| format!("<max_threads>{threads}</max_threads>")).unwrap_or_default();
    format!(
        "<clickhouse>
    <profiles><default><implicit_select>0</implicit_select>{threads}</default></profiles>
    <users>
        <default>
            <password></password>
            <networks><ip>127.0.0.1</ip></networks>
            <profile>default</profile>
            <quota>default</quota>
            <access_management>1</access_management>
        </default>
    </users>
    <quotas><default></default></quotas>
</clickhouse>
"
    )
}

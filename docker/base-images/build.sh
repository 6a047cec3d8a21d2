#!/bin/bash
# Stand-ins for the public base images, from packages alone: Debian by debootstrap, Debian's Python 3.11, redis-server
# and haproxy, Apache Kafka's jars by Maven on Debian's Java 17. For machines that reach package mirrors but no image
# registry. Each answers to the commands, paths and variables of the image it stands for, as far as docker-compose.yml
# uses them. Names: docker/stand-ins.env. Root only.
#
#   docker/base-images/build.sh [python] [redis] [kafka] [haproxy]      (none named: all; those that exist are kept)
#
# FORCE=1 builds what exists again. Other mirrors: DEBIAN_MIRROR=…, and Maven's own settings.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
project=$(cd "$here/../.." && pwd)
work=$project/build/base-images
debian=$work/debian
suite=bookworm

main() {
    local wanted=("$@")
    [ "$(id -u)" = 0 ] || stop "must run as root: debootstrap makes a root file system"
    for tool in debootstrap docker tar; do
        command -v "$tool" >/dev/null || stop "$tool is not installed"
    done
    set -a && . "$project/docker/stand-ins.env" && set +a
    [ ${#wanted[@]} -gt 0 ] || wanted=(python redis kafka haproxy)
    mkdir -p "$work/archives"
    trap leave EXIT
    local name
    for name in "${wanted[@]}"; do
        case $name in
            python) build "$PYTHON_IMAGE" "$name" ;;
            redis) build "$REDIS_IMAGE" "$name" ;;
            kafka) build "$KAFKA_IMAGE" "$name" ;;
            haproxy) build "$PROXY_IMAGE" "$name" ;;
            *) stop "there is no base image $name; there are python, redis, kafka, haproxy" ;;
        esac
    done
}

# build IMAGE NAME: a copy of the Debian tree, what fill_NAME puts into it, imported as IMAGE.
build() {
    if [ -z "${FORCE:-}" ] && docker image inspect "$1" >/dev/null 2>&1; then
        echo "base-images: $1 is there"
        return
    fi
    local root=$work/$2
    make_debian
    rm -rf "$root"
    cp -a "$debian" "$root"
    changes=()
    "fill_$2" "$root"
    clean "$root"
    tar -C "$root" --numeric-owner --one-file-system -c . | docker import "${changes[@]}" - "$1" >/dev/null
    rm -rf "$root"
    echo "base-images: $1 built, $(docker image inspect -f '{{.Size}}' "$1" | awk '{printf "%.0f MB", $1 / 1e6}')"
}

make_debian() {
    [ ! -d "$debian" ] || return 0
    rm -rf "$debian.new"
    debootstrap --variant=minbase --cache-dir="$work/archives" "$suite" "$debian.new" ${DEBIAN_MIRROR:-} \
        >"$work/debootstrap.log" || stop "debootstrap failed; see $work/debootstrap.log"
    mv "$debian.new" "$debian"
}

fill_python() {
    install_packages "$1" python3.11 python3.11-venv ca-certificates
    ln -sf python3.11 "$1/usr/bin/python3"
    ln -sf python3.11 "$1/usr/bin/python"
    changes=(-c 'CMD ["python3"]')
}

fill_redis() {
    install_packages "$1" redis-server
    give "$1" redis 999 /data
    changes=(-c 'VOLUME /data' -c 'WORKDIR /data' -c 'USER 999:999' -c 'CMD ["redis-server"]')
}

fill_haproxy() {
    install_packages "$1" haproxy
    changes=(-c 'USER 99:99'
        -c 'CMD ["haproxy", "-W", "-db", "-f", "/usr/local/etc/haproxy/haproxy.cfg"]')
}

fill_kafka() {
    command -v mvn >/dev/null || stop "mvn is not installed; Kafka's jars come by it"
    install_packages "$1" openjdk-17-jre-headless
    mkdir -p "$1/opt/kafka/libs" "$1/opt/kafka/config" "$1/opt/kafka/logs" "$1/etc/kafka/docker"
    mvn -q -B -f "$project/testing/kafka/pom.xml" dependency:copy-dependencies \
        -DoutputDirectory="$1/opt/kafka/libs"
    cp "$here/kafka/log4j2.properties" "$here/kafka/run" "$1/etc/kafka/docker/"
    chmod 755 "$1/etc/kafka/docker/run"
    give "$1" appuser 1000 /var/lib/kafka/data
    chown 1000:1000 "$1/opt/kafka/config" "$1/opt/kafka/logs"
    changes=(-c 'VOLUME /var/lib/kafka/data' -c 'USER 1000:1000' -c 'EXPOSE 9092' -c 'CMD ["/etc/kafka/docker/run"]')
}

# Packages without documentation; services that they would start stay off.
install_packages() {
    local root=$1
    shift
    printf 'path-exclude=/usr/share/doc/*\npath-exclude=/usr/share/man/*\npath-exclude=/usr/share/locale/*\n' \
        >"$root/etc/dpkg/dpkg.cfg.d/headrace"
    printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
    chmod 755 "$root/usr/sbin/policy-rc.d"
    mkdir -p "$root/usr/share/man/man1"
    cp /etc/resolv.conf "$root/etc/resolv.conf"
    mount -t proc proc "$root/proc"
    chroot "$root" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "$@" >"$work/apt.log" 2>&1 || stop "apt failed; see $work/apt.log"
    umount "$root/proc"
}

# give ROOT USER ID FOLDER: the user, and the folder as its own, so that a new volume there belongs to it.
give() {
    chroot "$1" sh -c "getent passwd $2 >/dev/null && userdel $2; groupadd -f -g $3 $2-group &&
        useradd -u $3 -g $3 -M -d /nonexistent -s /usr/sbin/nologin $2"
    mkdir -p "$1$4"
    chown "$3:$3" "$1$4"
}

# What a container does not need. The mirror's name goes too: it is this machine's business.
clean() {
    rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/* "$1"/var/log/* "$1"/usr/share/{doc,man,locale,info}/*
    rm -rf "$1"/etc/apt/sources.list* "$1"/usr/sbin/policy-rc.d "$1"/etc/resolv.conf "$1"/etc/hostname "$1"/tmp/*
}

leave() {
    local mounted
    for mounted in "$work"/*/proc; do
        ! mountpoint -q "$mounted" || umount "$mounted"
    done
}

stop() {
    echo "base-images: $1" >&2
    exit 1
}

main "$@"

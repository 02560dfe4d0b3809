# The real `hicachectl tune` in this machine: /job/scenario names what is done, out/ keeps what it said and what the devices held.
# /job/site holds the packages and the project.
set -eu
export PYTHONPATH=/job/site NO_COLOR=1 COLUMNS=100 PYTHONDONTWRITEBYTECODE=1
mkdir -p out
echo lab >/proc/sys/kernel/hostname
mount -t tmpfs -o mode=755 state /var/lib # the guest's root is read-only
python3 -c '
import importlib.util
heavy = [name for name in ("torch", "numpy") if importlib.util.find_spec(name)]
assert not heavy, heavy
'
exec python3 tune_job.py "$(cat scenario)"

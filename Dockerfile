# CPU image that runs the README's training command: docker build -t sb_grpo . && docker run --rm sb_grpo
FROM python:3.11-slim
WORKDIR /sb_grpo
COPY . .
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu torch==2.13.0 \
    && pip install --no-cache-dir -c scripts/constraints.txt -e ".[zoo,envs]"
ENV OMP_NUM_THREADS=1
ENTRYPOINT ["python", "-m", "zoo.train"]
CMD ["--env", "Pendulum-v1", "--seed", "0", "--eval-freq", "20000"]

# One image for the scheduler and the workers; docker-compose.yml says which is which.
FROM python:3.11-slim AS build
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
RUN useradd --uid 10001 --create-home batchq \
 && install -d -o batchq -g batchq /var/lib/batchq \
 # Volumes with the users of the server take after these: see docker-compose.yml.
 && for name in server scheduler client $(seq -f "node-%g" 16); do \
      install -d -o batchq -g batchq "/users/$name"; \
    done
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir /wheels/*.whl && rm -r /wheels
# Programs of your pods go here: build FROM this image and add them.
USER batchq
WORKDIR /home/batchq
ENV BATCHQ_HOME=/var/lib/batchq \
    PYTHONUNBUFFERED=1
ENTRYPOINT ["batchq"]
CMD ["--help"]
